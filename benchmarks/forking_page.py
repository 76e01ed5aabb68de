"""The tables of docs/forking.md, from the results that are there.

python -m benchmarks.forking_page
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pages import report_of, row, write_tables

PAGE = Path(__file__).parents[1] / "docs" / "forking.md"
WAYS = {
    "off": "nothing is made ahead",
    "asked": "what was sent and waits",
    "right": "a draft, then the same prompt",
    "wrong": "a draft, then another prompt",
}


def forks() -> Iterator[str]:
    yield row(
        [
            "model, size, device",
            "a fork",
            "one session holds",
            "17 branches hold",
            "one stream, after by before forks",
        ]
    )
    yield "|---|---|---|---|---|"
    for name in ("forks-wan2.1-t2v-1.3b", "forks-wan-tiny"):
        report = report_of(name)
        asked = report["configuration"]
        found = report["measured"]
        assert asked["branches"] == 16, (
            f"{asked['branches']} branches, and the heading says 16 and their parent"
        )
        one = found["one_session_bytes"]
        times = found["times_one_session"]
        yield row(
            [
                f"{asked['model']}, {asked['size']}, {report['hardware'].get('gpu', 'CPU')}",
                f"{found['fork_ms']['median']:.2f} ms, at most {found['fork_ms']['most']:.2f}",
                f"{one / 1e6:,.2f} MB",
                f"{times:.1f}x of that",
                _beside(found["single_stream"]["processor_ms"]),
            ]
        )


def _beside(found: dict[str, Any]) -> str:
    lower, middle, upper = found["quartiles"]
    return f"{middle:.3f} (half of all turns {lower:.3f} to {upper:.3f})"


def look_ahead() -> Iterator[str]:
    found = report_of("look_ahead")["measured"]
    yield (
        "| what was made ahead | change to frame, alone | sooner | beside another session | sooner | its "
        "continuity |"
    )
    yield "|---|---|---|---|---|---|"
    for way, name in WAYS.items():
        alone, beside = (found[part]["change_to_frame"][way] for part in ("alone", "beside_others"))
        times = [
            cell
            for each in (alone, beside)
            for cell in (f"{1e3 * each['mean_s']:.0f} ms", f"{each['sooner']:.0%}")
        ]
        yield row([name, *times, f"{found['beside_others']['others'][way]['continuity']:.3f}"])


TABLES = {"benchmarks.forks": forks, "benchmarks.look_ahead": look_ahead}

if __name__ == "__main__":
    write_tables(PAGE, TABLES)
