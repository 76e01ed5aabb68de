"""`millstream bench load`: scripted people at a server, and a table of what they saw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from millstream.commands.report import describe, make_folder, tell
from millstream.core.errors import ConfigError

try:
    from millstream.load.gate import LIMITS, missed
    from millstream.load.host import Usage
    from millstream.load.record import PersonResult
    from millstream.load.run import LoadRequest, LoadResult, run_load
    from millstream.load.summary import Summary
except ModuleNotFoundError as missing:
    raise ConfigError(
        f"putting load on a server needs {missing.name}: pip install 'millstream[serve]'"
    ) from None

MIB = 2**20
WORDS = {
    "first_frame_s": "first frame after connecting",
    "control_arrival_s": "control sent to chunk here",
    "control_shown_s": "control sent to picture seen",
    "jitter_s": "arrival against media time",
    "resume_s": "next picture after coming back",
    "refusal_s": "refusal after asking",
}
"""Each of `record.Samples`."""


def run_bench_load(request: LoadRequest, *, as_json: bool, out: Path | None, gate: bool) -> list[str]:
    """Run, tell, and answer which limits were missed: none where none was set."""
    make_folder(out)
    result = asyncio.run(run_load(request))
    lines = missed(result) if gate else []
    report = as_report(request, result) | (
        {"gate": {"limits": asdict(LIMITS), "missed": lines}} if gate else {}
    )
    tell(report, as_json=as_json, out=out, show=lambda: show(result, lines, Console()))
    return lines


def as_report(request: LoadRequest, result: LoadResult) -> dict[str, Any]:
    return describe("load", asdict(request), msgspec.to_builtins(result))


def show(result: LoadResult, missed_limits: list[str], console: Console) -> None:
    console.print(_people(result.people))
    console.print(_everybody(result.everybody))
    for person in result.people:
        if person.reason:
            console.print(f"person {person.person} {person.outcome}: {person.reason}", highlight=False)
    for name, usage in (("server memory", result.server), ("over the connects", result.after_connects)):
        if usage is not None:
            console.print(f"{name}: {_usage(usage)}", highlight=False)
    if result.connects is not None:
        console.print(
            f"{result.connects.connects} connects, {result.connects.num_errors} errors", highlight=False
        )
    for line in missed_limits:
        console.print(f"[red]missed[/] {line}", highlight=False)


def _people(people: Sequence[PersonResult]) -> Table:
    table = Table(
        "", "", "continuity", "first\nframe s", "control\np95 s", "jitter\np95 s", "misses", "errors"
    )
    for person in people:
        table.add_row(
            str(person.person),
            person.outcome,
            "" if person.continuity is None else f"{person.continuity:.4f}",
            *(_p95(person.seen[name]) for name in ("first_frame_s", "control_shown_s", "jitter_s")),
            str(person.misses),
            str(person.num_errors),
        )
    return table


def _p95(summary: Summary | None) -> str:
    return "" if summary is None else f"{summary.p95:.3f}"


def _everybody(seen: dict[str, Summary | None]) -> Table:
    table = Table("everybody, in seconds", "count", "p50", "p95", "p99", "largest")
    for name, summary in seen.items():
        if summary is not None:
            values = (summary.p50, summary.p95, summary.p99, summary.largest)
            table.add_row(WORDS[name], str(summary.count), *(f"{value:.3f}" for value in values))
    return table


def _usage(usage: Usage) -> str:
    start, peak, end = (
        size / MIB for size in (usage.start.resident_bytes, usage.peak_bytes, usage.end.resident_bytes)
    )
    threads = "" if usage.start.threads is None else f", threads {usage.start.threads} to {usage.end.threads}"
    tasks = "" if usage.start.tasks is None else f", tasks {usage.start.tasks} to {usage.end.tasks}"
    return f"start {start:.0f} MiB, peak {peak:.0f}, end {end:.0f} ({usage.growth:+.1%}){threads}{tasks}"
