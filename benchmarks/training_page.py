"""The table of docs/training.md of how far each strategy is from one process, from the result that is there.

python -m benchmarks.training_page
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.pages import report_of, row, write_tables

PAGE = Path(__file__).parents[1] / "docs" / "training.md"


def equality() -> Iterator[str]:
    report = report_of("train_equality")
    found = report["measured"]["rows"]
    models = list(dict.fromkeys(each["model"] for each in found))
    yield row(("strategy", "ranks", *models))
    yield row(["---"] * (2 + len(models)))
    by_name = {(each["strategy"], each["model"]): each for each in found}
    ranks = {each["strategy"]: each["ranks"] for each in found}
    for name, count in ranks.items():
        differences = (
            f"{by_name[name, model]['difference']:.1e}" if (name, model) in by_name else ""
            for model in models
        )
        yield row((name, str(count), *differences))
    yield ""
    commits = ", ".join(f"`{each}`" for each in dict.fromkeys(each["commit"] for each in found))
    yield f"{report['hardware']['cpu'] or 'ARM CPU'}, torch {report['versions']['torch']}, commit {commits}."


TABLES = {"benchmarks.training_page": equality}

if __name__ == "__main__":
    write_tables(PAGE, TABLES)
