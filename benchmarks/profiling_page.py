"""The tables of docs/profiling.md, from the results and the trace that are there.

python -m benchmarks.profiling_page
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.pages import report_of, row, write_tables
from millstream.commands.profile.read import show
from millstream.planner.hardware import find_device
from millstream.profiler.reading import read

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "profiling.md"
FAST_TRACE = ROOT / "tests" / "fixtures" / "traces" / "fast-stream.json.gz"


def spans() -> Iterator[str]:
    yield "| on | spans a chunk | one costs | a chunk | of it | goal |"
    yield "|---|---|---|---|---|---|"
    for name in ("spans", "spans-cuda"):
        report = report_of(name)
        found = report["measured"]
        hardware = report["hardware"]
        yield row(
            [
                hardware.get("gpu") or f"a processor, threads: {hardware['threads']}",
                str(found["spans_per_chunk"]),
                f"{found['span_us']:.1f} \N{MICRO SIGN}s",
                f"{found['chunk_ms']:.1f} ms",
                f"{found['share_of_a_chunk']:.2%}",
                f"below {found['goal_below']:.0%}",
            ]
        )


def diagnosis() -> Iterator[str]:
    found = report_of("diagnosis")["measured"]
    kinds = ("simulated", "real")
    yield "| put there | simulated: named | taken for | real: named | taken for |"
    yield "|---|---|---|---|---|"
    for bound in found["simulated"]["confusion"]:
        yield row(
            [bound, *(cell for kind in kinds for cell in _named(found[kind]["confusion"].get(bound), bound))]
        )
    asked = {kind: found[kind]["by_workload"] for kind in kinds}
    draws = [
        f"{len(asked[kind])} {kind}, {next(iter(asked[kind].values()))['of']} times each" for kind in kinds
    ]
    yield ""
    yield (
        f"Workloads: {'; '.join(draws)}. {found['right']:.1%} were named right, "
        f"{found['confidently_wrong']} wrong with high"
    )
    yield "confidence."


def _named(taken: dict[str, int] | None, bound: str) -> tuple[str, str]:
    if taken is None:
        return "", ""
    others = ", ".join(f"{name} {number}" for name, number in taken.items() if name != bound)
    return f"{taken.get(bound, 0)} of {sum(taken.values())}", others


def strangers() -> Iterator[str]:
    found = report_of("strangers")["measured"]
    asked = [(f"all {found['traces']}, by the rules as they are", found["by_confidence"])]
    for number, each in enumerate(found["blind_rounds"], 1):
        asked.append((f"blind, round {number}: {each['traces']} when first asked", each["by_confidence"]))
    yield "| traces | high: right | medium: right | low: right |"
    yield "|---|---|---|---|"
    for name, counted in asked:
        yield row(
            [
                name,
                *(
                    f"{counted[level]['right']} of {counted[level]['of']}"
                    for level in ("high", "medium", "low")
                ),
            ]
        )


def fast_report() -> Iterator[str]:
    """Yield the output of `millstream profile read … --gpu H200` for the trace kept with the tests."""
    page = Console(file=io.StringIO(), width=200)
    show(read([FAST_TRACE], device=find_device("H200")), (), page)
    yield "```"
    assert isinstance(page.file, io.StringIO)
    yield from (line.rstrip() for line in page.file.getvalue().splitlines())
    yield "```"


TABLES = {"spans": spans, "diagnosis": diagnosis, "strangers": strangers, "fast_report": fast_report}

if __name__ == "__main__":
    write_tables(PAGE, TABLES)
