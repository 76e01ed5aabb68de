"""An answer as one HTML file that needs nothing else: the verdict, every plan, and where time, memory and
money go."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from millstream.core.config import GIB
from millstream.planner.judge import MEMORY_SHARE, Plan, rates_text
from millstream.planner.search import PlanAnswer
from millstream.report.page import Row, page, table
from millstream.report.svg import Bar, Point, points, stacked_bars

SHOWN = 12


def html_report(answer: PlanAnswer) -> str:
    shown = answer.plans[:SHOWN]
    ask = answer.best.ask
    stream = ask.work.stream
    device = ask.fleet.device
    promise = f"{stream.fps:g} FPS for {ask.sessions} at {stream.height}x{stream.width} on {ask.fleet.name}"
    parts = [
        f"<h1>{escape(ask.work.spec.name)}: {escape(promise)}</h1>",
        f"<p class='note'>window {stream.window}, {len(stream.steps)} steps, {ask.work.software.name} "
        "kernels, "
        f"{ask.work.precision} precision; {rates_text(ask)}; "
        f"${device.dollars_per_hour:g} a device and hour. Calculated, not measured.</p>",
        _verdict(answer),
        "<h2>Plans, best first</h2>",
        _table(answer, shown),
        "<h2>Where a chunk's time goes</h2>",
        _time_plot(shown),
        "<p class='note'>Milliseconds of one session's chunk, one phase after another. With a front of its "
        "own the VAE "
        "works beside the mesh, so the period is the longer of the two. Faint: misses the promise.</p>",
        "<h2>What the fullest device holds</h2>",
        _memory_plot(shown),
        "<p class='note'>GiB with as many sessions as the ask puts on a replica; the line is "
        f"{100 * MEMORY_SHARE:.0f}% of the "
        "device.</p>",
        "<h2>Cost against latency</h2>",
        _pareto_plot(answer, shown),
        "<p class='note'>Latency is from a chunk's plan to its pictures. Joined: nothing that holds the "
        "promise is both "
        "cheaper and quicker. Grey: the others, named when pointed at.</p>",
    ]
    return page(f"{ask.work.spec.name} on {ask.fleet.name}", parts)


def _verdict(answer: PlanAnswer) -> str:
    best = answer.best
    low, high = best.fps_range
    if not best.holds:
        said = "; ".join(shortfall.said for shortfall in best.shortfalls)
        return (
            f"<p class='verdict no'>No plan holds this promise. The nearest is <b>{best.layout}</b>: "
            f"{escape(said)}.</p>"
        )
    return (
        f"<p class='verdict'><b>{best.layout}</b> holds it: {best.fps:.1f} FPS ({low:.1f} to {high:.1f} by "
        "what is known), "
        f"first frame after {best.time.first_frame_ms / 1e3:.2f} s, {best.devices} of {best.ask.fleet.name}, "
        f"${best.dollars_per_stream_hour:.2f} per stream and hour. Bound by {escape(best.bound)}.</p>"
    )


def _table(answer: PlanAnswer, shown: Sequence[Plan]) -> str:
    heads = (
        "topology",
        "FPS",
        "first frame",
        "chunk",
        "streams a replica",
        "devices",
        "$ / stream-hour",
        "bound by",
        "why not",
    )
    rows = []
    for plan in shown:
        cells = (
            str(plan.layout),
            f"{plan.fps:.1f}",
            f"{plan.time.first_frame_ms / 1e3:.2f} s",
            f"{plan.time.period_ms:.0f} ms",
            str(plan.sessions_per_replica),
            f"{plan.replicas} x {plan.layout.num_devices}",
            f"{plan.dollars_per_stream_hour:.2f}",
            plan.bound,
            answer.why_not(plan),
        )
        rows.append(Row(cells=cells, kind="no" if not plan.holds else "best" if plan is answer.best else ""))
    return table(heads, rows, numeric=range(1, 7))


def _time_plot(shown: Sequence[Plan]) -> str:
    deadline = shown[0].ask.work.deadline_ms
    bars = [
        Bar(
            label=str(plan.layout),
            parts=_phases(plan),
            note=f"period {plan.time.period_ms:.0f}",
            dim=not plan.holds,
        )
        for plan in shown
    ]
    return stacked_bars(bars, limit=deadline, limit_label=f"a chunk plays for {deadline:.0f} ms")


def _phases(plan: Plan) -> dict[str, float]:
    time = plan.time
    call = plan.time.call
    return {
        "products": time.calls * call.products,
        "attention": time.calls * call.attention,
        "between products": time.calls * call.elementwise,
        "communication": time.mesh_ms - time.calls * (call.total - call.communication) + time.transport_ms,
        "VAE": time.encode_ms + time.decode_ms,
        "host": time.host_ms,
    }


def _memory_plot(shown: Sequence[Plan]) -> str:
    limit = MEMORY_SHARE * shown[0].ask.fleet.device.memory_gib
    bars = []
    for plan in shown:
        sessions = plan.sessions_on_a_replica
        need = max(plan.needs, key=lambda need: need.bytes_for(sessions))
        parts = {_kind(name): size / GIB for name, size in need.fixed.items()}
        parts |= {name: sessions * size / GIB for name, size in need.per_session.items()}
        note = f"{sum(parts.values()):.1f}"
        bars.append(Bar(label=str(plan.layout), parts=parts, note=note, dim=not plan.holds))
    return stacked_bars(bars, limit=limit, limit_label=f"{limit:.0f} GiB")


def _kind(name: str) -> str:
    """Working sets share a colour: a device has one of them."""
    return "working set" if name.endswith("working set") else name


def _pareto_plot(answer: PlanAnswer, shown: Sequence[Plan]) -> str:
    front = answer.pareto
    drawn = {id(plan): plan for plan in (*shown, *front)}.values()
    found = [
        Point(label=str(plan.layout), x=plan.dollars_per_stream_hour, y=plan.latency_ms, marked=plan in front)
        for plan in drawn
    ]
    return points(found, x_label="dollars per stream and hour", y_label="latency of a chunk, ms")
