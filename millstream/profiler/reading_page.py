"""A reading as one HTML file that needs nothing else: the verdict, a timeline, where time and memory went,
and ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from statistics import median

import numpy as np

from millstream.profiler.against_plan import ComparedLine
from millstream.profiler.anatomy import Anatomy
from millstream.profiler.intervals import Intervals
from millstream.profiler.kinds import Kind
from millstream.profiler.reach.ceilings import peak
from millstream.profiler.reach.roofline import Roofline
from millstream.profiler.reading import Reading
from millstream.profiler.rules.findings import UNEXPLAINED, UNTRUSTED, Finding
from millstream.report.page import Row, page, table
from millstream.report.svg import Bar, Lane, curves, lanes, stacked_bars

CELLS = 430
"""Cells of a lane; anything finer is not visible."""
MOSTLY_KNOWN = 0.5
"""Share of a family's time with known shapes; below it, what the family reached is not drawn."""
HOST_LANE = {
    "host waits": Kind.SYNC,
    "allocator": Kind.ALLOCATION,
    "input": Kind.DATA,
    "encoding": Kind.ENCODE,
    "compiling": Kind.COMPILE,
}
SAID = {
    "work": "work",
    "collective": "collectives, not covered",
    "exchange": "send and receive, not covered",
    "copy": "copies, not covered",
    "queue": "idle: queued, waits on the device",
    "warm-up": "idle: first calls",
    "lost": "idle: waits for what the trace does not show",
    "unknown": "idle: launch not in the trace",
    "allocator": "idle: allocator",
    "data": "idle: input",
    "encode": "idle: encoding",
    "compile": "idle: compiling",
    "profiler": "idle: profiler",
    "sync": "idle: after waiting for the device",
    "launch": "idle: launching",
    "host": "idle: host busy elsewhere",
}
BAD = 0.25
"""Share of the wall; a verdict whose cause loses this much is red."""
_MEANT = {
    "work": "#5a9367",
    "collectives": "#3b6ea5",
    "send and receive": "#4aa3a3",
    "copies": "#7a6aa8",
    "host waits": "#d98032",
    "allocator": "#c2a83e",
    "input": "#b86f9f",
    "encoding": "#6b4f3a",
    "compiling": "#9bb55c",
    "decoding": "#2f5d62",
    "launching": "#d46a6a",
    "host": "#a34a5e",
    "queued": "#8a8d91",
    "unknown": "#c9cdd1",
}
_OF_THE_WALL = {
    "work": "work",
    "collective": "collectives",
    "exchange": "send and receive",
    "copy": "copies",
    "queue": "queued",
    "warm-up": "launching",
    "lost": "unknown",
    "unknown": "unknown",
    "allocator": "allocator",
    "data": "input",
    "encode": "encoding",
    "compile": "compiling",
    "profiler": "unknown",
    "sync": "host waits",
    "launch": "launching",
    "host": "host",
}
"""A cause has one colour, in the timeline and in where the wall went."""
COLOUR_OF = _MEANT | {SAID[cause]: _MEANT[name] for cause, name in _OF_THE_WALL.items()}


def html_report(reading: Reading, lines: Sequence[ComparedLine] = ()) -> str:
    first, *others = (rank.trace.path.name for rank in reading.group.ranks)
    name = f"{first} and {len(others)} more" if others else first
    device = reading.device.name if reading.device else "device not known"
    ranks = len(reading.group.ranks)
    parts = [
        f"<h1>{escape(name)}</h1>",
        f"<p class='note'>{ranks} rank{'s' * (ranks > 1)}, {reading.wall_ms:.0f} ms, {escape(device)}. "
        "Shares are of wall time, by interval arithmetic.</p>",
        _verdict(reading),
        _section("What else it could gain", _findings(reading.diagnosis.others)),
        _section("Timeline", _timeline(reading)),
        _section("Where the wall went", _wall(reading)),
        _section("What the host did while the device was idle", _gaps(reading)),
        _section("Kernels that take longest", _kernels(reading)),
        _section("Chunks", _chunks(reading)),
        _section("Against the plan", _plan(lines)),
        _section("Ranks and collectives", _ranks(reading)),
        _section("Against the ceilings", _ceilings(reading)),
        _section("Memory", _memory(reading)),
        _section("Compiler", _compiler(reading)),
    ]
    return page(f"profile of {name}", parts)


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>{body}" if body else ""


def _verdict(reading: Reading) -> str:
    found = reading.diagnosis.verdict
    doubts = reading.diagnosis.doubts
    kind = (
        " no"
        if found.name == UNTRUSTED or found.gain >= BAD
        else " unsure"
        if found.name == UNEXPLAINED
        else ""
    )
    gain = f" At most {100 * found.gain:.0f}% of the wall could be gained." if found.gain else ""
    advice = f"<br><b>Next:</b> {escape(found.advice)}."
    said = "".join(f"<br>{escape(line[:1].upper() + line[1:])}." for line in found.evidence)
    less = "".join(f"<p class='note'>{escape(doubt)}.</p>" for doubt in doubts)
    return (
        f"<p class='verdict{kind}'><b>{escape(found.name)}</b>, confidence "
        f"{found.confidence}.{gain}{said}{advice}</p>{less}"
    )


def _findings(others: Sequence[Finding]) -> str:
    rows = [Row(cells=(f.name, f"{100 * f.gain:.0f}%", "; ".join(f.evidence), f.advice)) for f in others[:8]]
    return table(("cause", "at most", "evidence", "advice"), rows, numeric=(1,)) if rows else ""


def _timeline(reading: Reading) -> str:
    begin = min(rank.begin for rank in reading.group.ranks)
    length = max(rank.wall for rank in reading.group.ranks)
    rows = []
    for rank in reading.group.ranks:
        start = begin if reading.group.same_clock else rank.begin
        rows.append(Lane(label=f"rank {rank.rank} device", patches=_patches(rank, start, length)))
        doing = {name: rank.host(kind) for name, kind in HOST_LANE.items()}
        patches = {name: _cells(found, start, length) for name, found in doing.items() if len(found)}
        if rank.decoding.total:
            patches["decoding"] = _cells(rank.decoding, start, length)
        if patches:
            rows.append(Lane(label="beside it", patches=patches))
    return lanes(rows, length=length / 1e3, unit="ms", meant=COLOUR_OF)


def _patches(rank: Anatomy, start: float, length: float) -> dict[str, list[tuple[float, float, float]]]:
    sets = {
        "work": rank.work,
        "collectives": rank.collectives,
        "send and receive": rank.exchanges,
        "copies": rank.copies,
    }
    return {name: _cells(found, start, length) for name, found in sets.items() if len(found)}


def _cells(found: Intervals, start: float, length: float) -> list[tuple[float, float, float]]:
    """Return patches as milliseconds from the start, and how full they are; equal neighbours are one
    patch."""
    edges = np.linspace(0.0, length, CELLS + 1)
    filled = np.round(found.within(start + edges[:-1], start + edges[1:]) / (length / CELLS) * 5) / 5
    changes = np.flatnonzero(np.diff(filled, prepend=-1.0, append=-1.0))
    return [
        (edges[low] / 1e3, edges[high] / 1e3, float(filled[low]))
        for low, high in pairwise(changes)
        if filled[low] > 0
    ]


def _wall(reading: Reading) -> str:
    bars = [
        Bar(
            label=f"rank {rank.rank}",
            parts={SAID[name]: 100 * share for name, share in rank.shares.items() if share >= 0.001},
            note=f"{rank.wall / 1e3:.0f} ms",
        )
        for rank in reading.group.ranks[:16]
    ]
    return stacked_bars(bars, limit=100.0, limit_label="% of the wall", meant=COLOUR_OF)


def _gaps(reading: Reading) -> str:
    found = [
        (rank.rank, gap)
        for rank, gaps in zip(reading.group.ranks, reading.host_gaps, strict=True)
        for gap in gaps
        if gap.ms
    ]
    rows = [
        Row(cells=(str(rank), gap.what[:160], f"{gap.ms:.1f}", str(gap.gaps), f"{100 * gap.share:.0f}%"))
        for rank, gap in sorted(found, key=lambda pair: -pair[1].ms)[:8]
    ]
    return table(("rank", "what", "ms", "gaps", "of the wall"), rows, numeric=(0, 2, 3, 4)) if rows else ""


def _kernels(reading: Reading) -> str:
    rows = []
    for k in reading.roofs[0].top:
        rate = (f"{k.tflops:.3g}", f"{k.gb_s:.4g}") if k.gb_s else ("", "")
        reached = "" if k.reached is None else f"{100 * k.reached:.0f}%"
        cells = (k.short[:90], k.family, str(k.calls), f"{k.ms:.2f}", f"{100 * k.share:.0f}%", *rate, reached)
        rows.append(Row(cells=cells))
    head = ("kernel", "family", "calls", "ms", "of the work", "TFLOP/s", "GB/s", "of the ceiling")
    return table(head, rows, numeric=range(2, 8)) if rows else ""


def _chunks(reading: Reading) -> str:
    phases = reading.phases
    if not phases.chunks:
        return ""
    rows = [
        Row(cells=(name, str(len(times)), f"{median(times):.2f}", f"{max(times):.2f}"))
        for name, times in [("a whole chunk", phases.period_ms), *phases.by_name.items()]
        if times
    ]
    return table(("phase", "chunks", "median ms", "longest ms"), rows, numeric=range(1, 4))


def _plan(lines: Sequence[ComparedLine]) -> str:
    rows = [
        Row(
            cells=(
                f"{line.what}, {line.unit}",
                f"{line.planned:.1f}",
                f"{line.measured:.1f}",
                f"{100 * line.miss:+.0f}%",
            )
        )
        for line in lines
    ]
    return table(("figure", "planned", "measured", "miss"), rows, numeric=range(1, 4)) if rows else ""


def _ranks(reading: Reading) -> str:
    skew = reading.group.skew
    if not skew.matched:
        return ""
    rows = [
        Row(
            cells=(
                str(rank.rank),
                f"{rank.work.total / 1e3:.1f}",
                f"{skew.waited_ms.get(rank.rank, 0.0):.1f}",
                f"{100 * skew.last.get(rank.rank, 0.0):.0f}%",
            ),
            kind="best" if rank.rank == skew.straggler else "",
        )
        for rank in reading.group.ranks
    ]
    return table(("rank", "work ms", "waited for others ms", "came last"), rows, numeric=range(4))


def _ceilings(reading: Reading) -> str:
    roof = reading.roofs[0]
    drawn = _families(roof) + _counted(roof)
    device = roof.device
    if device is None or not roof.known_ms:
        return drawn
    bars = [_bar(phase.name, 100 * phase.reached, is_peak=phase.is_compute) for phase in roof.phases]
    for family in (found for found in roof.families if found.known_share >= MOSTLY_KNOWN):
        by_flops, by_bytes = family.reached(device.rates)
        bars.append(_bar(family.family, 100 * max(by_flops, by_bytes), is_peak=by_flops >= by_bytes))
    rates = device.rates
    ridge = rates.matmul_tflops / rates.bandwidth_tb_s
    note = (
        f"<p class='note'>{escape(device.name)}: matmuls reach {rates.matmul_tflops:.3g} TFLOP/s, attention "
        f"{peak(rates, 'attention'):.3g}, convolutions {peak(rates, 'convolution'):.3g}, memory "
        f"{1e3 * rates.bandwidth_tb_s:.0f} GB/s; the ridge is at {ridge:.0f} flops a byte. Bytes are the "
        "least that must move, "
        "so what caches hold can pass the line.</p>"
    )
    chart = stacked_bars(bars, limit=100.0, limit_label="% of what was measured") if bars else ""
    return drawn + chart + note


def _families(roof: Roofline) -> str:
    rows = []
    for f in roof.families:
        reached = (f"{f.tflops:.3g}", f"{f.gb_s:.4g}", f"{f.intensity:.4g}") if f.known_ms else ("", "", "")
        rows.append(
            Row(cells=(f.family, str(f.kernels), f"{f.ms:.1f}", f"{100 * f.known_share:.0f}%", *reached))
        )
    head = ("family", "kernels", "ms", "with shapes", "TFLOP/s", "GB/s", "flops a byte")
    return table(head, rows, numeric=range(1, 7))


def _counted(roof: Roofline) -> str:
    rows = [
        Row(
            cells=(
                p.name,
                str(p.kernels),
                f"{p.ms:.1f}",
                f"{p.tflops:.3g}",
                f"{p.gb_s:.4g}",
                f"{100 * p.reached:.0f}%",
            )
        )
        for p in roof.phases
    ]
    if not rows:
        return ""
    note = (
        "<p class='note'>Most kernels of these phases carry no shapes. What a phase must compute is counted "
        "from the model; "
        "its matmuls, attention and convolutions are each held against their own ceiling.</p>"
    )
    return note + table(
        ("phase", "kernels", "ms", "TFLOP/s", "GB/s", "of the ceilings"), rows, numeric=range(1, 6)
    )


def _bar(label: str, reached: float, *, is_peak: bool) -> Bar:
    return Bar(
        label=label, parts={"of the peak" if is_peak else "of the bandwidth": reached}, note=f"{reached:.0f}%"
    )


def _memory(reading: Reading) -> str:
    uses = [
        (rank.rank, use)
        for rank, use in zip(reading.group.ranks, reading.memory, strict=True)
        if use is not None
    ]
    if not uses:
        return ""
    rank, use = max(uses, key=lambda pair: pair[1].peak_mib)
    series = {"allocated": list(zip(use.at_ms, use.allocated_mib, strict=True))}
    if use.peak_reserved_mib > 0:
        series["reserved"] = list(zip(use.at_ms, use.reserved_mib, strict=True))
    rows = [Row(cells=(name, f"{size:.1f}")) for name, size in use.filled_by]
    return (
        curves(series, x_label="ms", y_label=f"MiB on rank {rank}")
        + f"<p class='note'>At the peak of {use.peak_mib:.0f} MiB:</p>"
        + table(("what", "MiB"), rows, numeric=(1,))
    )


def _compiler(reading: Reading) -> str:
    found = [each for each in reading.compilation if each is not None]
    if not found:
        return ""
    head = "".join(
        f"<p class='note'>{each.ms:.0f} ms compiling, {each.graphs} graphs, {each.recompiled} recompiled.</p>"
        for each in found
    )
    rows = [Row(cells=(p.kind, p.where, str(p.times), p.reason)) for each in found for p in each.places[:20]]
    return head + (table(("", "where", "times", "why"), rows, numeric=(2,)) if rows else "")
