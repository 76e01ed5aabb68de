"""`millstream profile read` and `profile diff`: traces to a verdict on a terminal. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from millstream.commands.paths import profile_path
from millstream.commands.profile.dumps import are_dumps, run_read_dumps
from millstream.commands.profile.options import ProfileReadOptions
from millstream.commands.wide_console import wide_console
from millstream.core.errors import ConfigError
from millstream.core.files import write_whole
from millstream.planner.hardware import find_device
from millstream.planner.profile import read_profile
from millstream.profiler.against_plan import ComparedLine, against_plan, read_plan
from millstream.profiler.compilation import read_log
from millstream.profiler.difference import TraceChange, compare
from millstream.profiler.reading import Reading, read
from millstream.profiler.reading_page import SAID, html_report
from millstream.profiler.record import difference_record, reading_record


def read_traces(options: ProfileReadOptions) -> Reading:
    here = read_profile(profile_path())
    if (options.stages is None) != (options.micro_batches is None):
        raise ConfigError("--stages and --micro-batches go together: a bubble is predicted from both")
    return read(
        options.traces,
        device=None if options.gpu is None else find_device(options.gpu, here=here),
        here=here,
        log=read_log(options.log) if options.log is not None else (),
        stages=options.stages,
        micro_batches=options.micro_batches,
    )


def run_profile_read(options: ProfileReadOptions) -> None:
    if are_dumps(options.traces):
        if options.html is not None:
            raise ConfigError("--html is for traces; leave it out for a snapshot or a flight recorder's dump")
        run_read_dumps(options.traces, as_json=options.as_json)
        return
    reading = read_traces(options)
    lines = against_plan(reading, read_plan(options.plan)) if options.plan is not None else ()
    if options.html is not None:
        write_whole(options.html, html_report(reading, lines))
    if options.as_json:
        print(json.dumps(reading_record(reading, lines), indent=2))
    else:
        show(reading, lines, wide_console())


def run_profile_diff(before: Path, after: Path, *, gate: float, as_json: bool) -> bool:
    """Compare two traces. Return whether nothing that is gated got slower, or larger, by more than the
    gate."""
    changes = compare(*(read_traces(ProfileReadOptions(traces=[path])) for path in (before, after)))
    if as_json:
        print(json.dumps(difference_record(changes, gate), indent=2))
    else:
        _show_changes(changes, gate, wide_console())
    return not any(change.is_regression(gate) for change in changes)


def parse_share(text: str) -> float:
    """`5%`, or `0.05`."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ConfigError(f"--gate must be a share such as 5%, got {text!r}") from None
    if not 0 <= share < 10:
        raise ConfigError(f"--gate must be 0% to 1000%, got {text!r}")
    return share


def show(reading: Reading, lines: Sequence[ComparedLine], console: Console) -> None:
    verdict = reading.diagnosis.verdict
    console.print(f"[bold]{verdict.name}[/], confidence {verdict.confidence}", highlight=False)
    for line in verdict.evidence:
        console.print(f"  {line}", highlight=False)
    most = f"at most {100 * verdict.gain:.0f}% to gain: " if verdict.gain else "next: "
    console.print(f"  {most}{verdict.advice}", highlight=False)
    for doubt in reading.diagnosis.doubts:
        console.print(f"  but: {doubt}", highlight=False)
    if reading.diagnosis.others:
        table = Table("what else", "at most", "evidence", box=None)
        for finding in reading.diagnosis.others[:6]:
            table.add_row(
                finding.name, f"{100 * finding.gain:.0f}%", finding.evidence[0] if finding.evidence else ""
            )
        console.print(table)
    _show_wall(reading, console)
    _show_gaps(reading, console)
    _show_chunks(reading, console)
    _show_kernels(reading, console)
    _show_ceilings(reading, console)
    _show_counted(reading, console)
    _show_memory(reading, console)
    _show_compiler(reading, console)
    if lines:
        table = Table("against the plan", "planned", "measured", "miss", box=None)
        for each in lines:
            miss = f"{100 * each.miss:+.0f}%"
            table.add_row(f"{each.what}, {each.unit}", f"{each.planned:.1f}", f"{each.measured:.1f}", miss)
        console.print(table)


def _show_wall(reading: Reading, console: Console) -> None:
    ranks = reading.group.ranks[:8]
    table = Table("of the wall", *(f"rank {rank.rank}" for rank in ranks), box=None)
    for name, said in SAID.items():
        if any(rank.shares[name] >= 0.005 for rank in ranks):
            table.add_row(said, *(f"{100 * rank.shares[name]:.0f}%" for rank in ranks))
    skew = reading.group.skew
    if skew.matched:
        table.add_row(
            "came last to collectives", *(f"{100 * skew.last.get(rank.rank, 0.0):.0f}%" for rank in ranks)
        )
    table.add_row("ms", *(f"{rank.wall / 1e3:.0f}" for rank in ranks))
    console.print(table)


def _show_gaps(reading: Reading, console: Console) -> None:
    gaps = reading.host_gaps[0]
    if not gaps or gaps[0].share < 0.01:
        return
    what = Column("while the device was idle, the host was in", overflow="fold")
    table = Table(what, "ms", "gaps", "of the wall", box=None)
    for gap in gaps:
        table.add_row(escape(gap.what[:100]), f"{gap.ms:.1f}", str(gap.gaps), f"{100 * gap.share:.0f}%")
    console.print(table)


def _show_kernels(reading: Reading, console: Console) -> None:
    name = Column("longest kernels", no_wrap=True)
    table = Table(name, "calls", "ms", "of the work", "TFLOP/s", "GB/s", "of the ceiling", box=None)
    for k in reading.roofs[0].top[:6]:
        rate = (f"{k.tflops:.3g}", f"{k.gb_s:.4g}") if k.gb_s else ("", "")
        reached = "" if k.reached is None else f"{100 * k.reached:.0f}%"
        table.add_row(
            escape(k.short[:60]), str(k.calls), f"{k.ms:.2f}", f"{100 * k.share:.0f}%", *rate, reached
        )
    if table.row_count:
        console.print(table)


def _show_chunks(reading: Reading, console: Console) -> None:
    phases = reading.phases
    if not phases.chunks:
        return
    table = Table("a chunk", "median ms", box=None)
    for name, times in phases.by_name.items():
        table.add_row(name, f"{median(times):.2f}")
    table.add_row(f"whole, of {phases.chunks}", f"{median(phases.period_ms):.2f}")
    console.print(table)


def _show_ceilings(reading: Reading, console: Console) -> None:
    table = Table("on the device", "kernels", "ms", "with shapes", "TFLOP/s", "GB/s", box=None)
    for found in reading.roofs[0].families:
        reached = (f"{found.tflops:.3g}", f"{found.gb_s:.4g}") if found.known_ms else ()
        table.add_row(
            found.family, str(found.kernels), f"{found.ms:.1f}", f"{100 * found.known_share:.0f}%", *reached
        )
    device = reading.device
    if device is not None:
        reach = f"{device.rates.matmul_tflops:.3g}", f"{1e3 * device.rates.bandwidth_tb_s:.4g}"
        table.add_row(f"{device.name} reaches", "", "", "", *reach)
    console.print(table)


def _show_counted(reading: Reading, console: Console) -> None:
    """Phases whose kernels carry no shapes."""
    if not reading.roofs[0].phases:
        return
    table = Table("by phase", "kernels", "ms", "TFLOP/s", "GB/s", "of the ceilings", box=None)
    for phase in reading.roofs[0].phases:
        reach = f"{phase.tflops:.3g}", f"{phase.gb_s:.4g}", f"{100 * phase.reached:.0f}%"
        table.add_row(phase.name, str(phase.kernels), f"{phase.ms:.1f}", *reach)
    console.print(table)


def _show_memory(reading: Reading, console: Console) -> None:
    for rank, use in zip(reading.group.ranks, reading.memory, strict=True):
        if use is None:
            continue
        filled = ", ".join(f"{name} {size:.1f}" for name, size in use.filled_by[:4])
        console.print(f"rank {rank.rank} peaks at {use.peak_mib:.1f} MiB: {filled}", highlight=False)


def _show_compiler(reading: Reading, console: Console) -> None:
    for rank, found in zip(reading.group.ranks, reading.compilation, strict=True):
        if found is None:
            continue
        said = f"{found.ms:.0f} ms compiling, {found.graphs} graphs, {found.recompiled} recompiled"
        console.print(f"rank {rank.rank}: {said}", highlight=False)
        for place in found.places[:8]:
            console.print(
                f"  {place.kind} {place.where} x{place.times}: {place.reason}", highlight=False, markup=False
            )


def _show_changes(changes: Sequence[TraceChange], gate: float, console: Console) -> None:
    table = Table("", "before", "after", "change", "noise", "", box=None)
    for change in changes:
        said = "slower" if change.is_regression(gate) else "" if change.gated else "not gated"
        noise = f"{100 * change.noise:.1f}%"
        table.add_row(
            change.what,
            f"{change.before:.2f}",
            f"{change.after:.2f}",
            f"{100 * change.share:+.1f}%",
            noise,
            said,
        )
    console.print(table)
