"""Text of `millstream plan` around its tables: what was asked, the verdict, what columns mean, which card is
cheapest, and what would make a promise hold. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from millstream.commands.wide_console import wide_console
from millstream.core.errors import ConfigError
from millstream.core.topology import Topology
from millstream.planner.cards.weights import NATIVE
from millstream.planner.hardware import Fleet
from millstream.planner.judge import Plan, PlanAsk, rates_text
from millstream.planner.questions.compare import Comparison, compare
from millstream.planner.questions.remedies import SHOWN, Remedy
from millstream.planner.record import ask_record, plan_record
from millstream.planner.workload import Workload


def heading(ask: PlanAsk) -> tuple[str, str]:
    device = ask.fleet.device
    work = ask.work
    return (
        f"{_asked(ask)} on {ask.fleet.name}",
        f"{work.software.name} kernels, {work.precision} precision"
        f"{_besides(work)}, {rates_text(ask)}, ${device.dollars_per_hour:g} a device-hour",
    )


def _asked(ask: PlanAsk) -> str:
    work = ask.work
    stream = ask.work.stream
    shape = f"{work.spec.name} at {stream.height}x{stream.width}, "
    steps = f"{len(stream.steps)} steps" if len(stream.steps) != 1 else "1 step"
    if len(stream.opening_steps) != len(stream.steps):
        steps += f" ({len(stream.opening_steps)} in the first chunk)"
    if work.whole_clip:
        return (
            f"{shape}a clip of {work.chunk_frames} frames at once, {steps}: {stream.fps:g} FPS for "
            f"{ask.sessions}"
        )
    return f"{shape}window {stream.window}, {steps}: {stream.fps:g} FPS for {ask.sessions}"


def _besides(work: Workload) -> str:
    """List what differs from this engine's defaults."""
    said = {
        "guided": work.guidance,
        "no commit": not work.commit and not work.whole_clip,
        "stream batch": work.stream_batch,
        "video in": work.video_in,
        "tiny VAE": work.decoder == "tiny",
        f"text encoder {work.text_place}": work.text_place != "device",
        f"{work.weights} weights": work.weights != NATIVE,
    }
    return "".join(f", {name}" for name, on in said.items() if on)


def verdict(plan: Plan) -> str:
    reached, low, high = (f"{fps:.0f}" if fps >= 100 else f"{fps:.3g}" for fps in (plan.fps, *plan.fps_range))
    device = plan.ask.fleet.device.name
    known = device if plan.layout.num_devices == 1 else f"several {device} together, never measured here"
    if plan.waits_for_host:
        known = "hosts, which are what it waits for"
    between = f"one stream reaches {reached} FPS, from {low} to {high} by what is known of {known}"
    if not plan.holds:
        return f"No, for lack of {' and '.join(shortfall.what for shortfall in plan.shortfalls)}: {between}."
    used = (
        f"{plan.devices}x{plan.ask.fleet.device.name} as {plan.layout}, ${plan.dollars_per_hour:.2f} an hour"
    )
    if not plan.surely_holds:
        return f"Perhaps, with {used}: {between}, so it may just miss {plan.ask.work.stream.fps:g}."
    return f"Yes, with {used}: {between}."


def legend(plan: Plan) -> tuple[str, ...]:
    """Explain the columns, with the best plan's own numbers."""
    name, _, share = plan.bound.rpartition(" ")
    of = {"memory": "the memory it may fill", "first frame": "the wait for a first frame"}.get(
        name, "the time a chunk plays for"
    )
    over = ": over 100% it misses" if float(share.rstrip("%")) > 100 else ""
    carried = max(1, plan.sessions_per_replica) * plan.replicas
    return (
        "* nothing is both cheaper and sooner to show a change; - misses the promise; streams of one replica",
        f"$/h each: dollars an hour for each stream, {plan.devices} x "
        f"${plan.ask.fleet.device.dollars_per_hour:g} "
        f"for {min(plan.ask.sessions, carried)}",
        f"bound: what one stream uses furthest; {plan.bound} is {name}, which takes {share} of {of}{over}",
    )


def show_remedies(plan: Plan, helps: Sequence[Remedy], console: Console) -> None:
    for shortfall in plan.shortfalls:
        console.print(
            f"no plan holds this promise; in the way of the nearest: {shortfall.said}", highlight=False
        )
    if not plan.shortfalls:
        return
    if not helps:
        console.print("nothing that was tried would make it hold: ask for much less", highlight=False)
        return
    console.print("what would make it hold, cheapest first:", highlight=False)
    for each in helps[:SHOWN]:
        said = (
            f"  {each.said}: {each.plan.fps:.1f} FPS as {each.plan.layout}, ${each.dollars_per_hour:.2f} "
            "an hour"
        )
        console.print(said, highlight=False)


def remedy_record(each: Remedy) -> dict[str, Any]:
    return {"change": each.said, "dollars_per_hour": each.dollars_per_hour, "plan": plan_record(each.plan)}


def run_compare(
    ask: PlanAsk,
    fleets: Sequence[Fleet],
    *,
    only: Topology | None,
    most: str | None,
    html: Path | None,
    as_json: bool,
) -> bool:
    """Which of several cards; whether one of them holds."""
    if most is not None or html is not None:
        raise ConfigError("--max and --html are of one kind of card; name it in --gpus")
    found = compare(ask, fleets, only=only)
    if as_json:
        record = {"ask": ask_record(ask), "holds": found.best.holds, "refused": list(found.refused)}
        print(json.dumps({**record, "cards": [_card(answer.best) for answer in found.answers]}, indent=2))
    else:
        _show_compared(found, wide_console())
    return found.best.holds


def _card(plan: Plan) -> dict[str, Any]:
    """Return the record of the card that the plan is on, with the plan's."""
    low, high = plan.fps_range
    device = plan.ask.fleet.device
    said = {
        "gpu": device.name,
        "dollars_per_hour": plan.dollars_per_hour,
        "fps_low": low,
        "fps_high": high,
    }
    return {**said, **plan_record(plan)}


def _show_compared(found: Comparison, console: Console) -> None:
    console.print(f"{_asked(found.best.ask)}, on any of {len(found.answers)} kinds of card", highlight=False)
    console.print(_cheapest(found), highlight=False)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for head in ("card", "devices", "topology", "FPS", "first", "memory", "$/h in all", "$/h each", "bound"):
        table.add_column(head, overflow="fold")
    for answer in found.answers:
        table.add_row(*_compared_row(answer.best))
    console.print(table)
    console.print(
        "- misses the promise; ? may just miss it, by what is known of the card; FPS of one stream",
        highlight=False,
    )
    console.print("$/h: prices are assumed; give your own as H100@2.10,RTX4090@0.40", highlight=False)
    for line in found.refused:
        console.print(f"  {line}", highlight=False)


def _cheapest(found: Comparison) -> str:
    sure = next((answer.best for answer in found.holding if answer.best.surely_holds), None)
    if not found.holding:
        return f"None holds it; nearest: {found.best.ask.fleet.device.name}, {found.best.shortfalls[0].said}"
    said = f"Cheapest: {_named(found.best)}"
    if sure is not None and sure is not found.best:
        said += f"; that may just miss it, surely: {_named(sure)}"
    return said


def _named(plan: Plan) -> str:
    return f"{plan.devices}x{plan.ask.fleet.device.name}, ${plan.dollars_per_hour:.2f} an hour"


def _compared_row(plan: Plan) -> tuple[str, ...]:
    mark = " " if plan.surely_holds else "?" if plan.holds else "-"
    low, high = plan.fps_range
    return (
        f"{mark} {plan.ask.fleet.device.name}",
        str(plan.devices),
        str(plan.layout),
        f"{plan.fps:.1f} ({low:.1f}-{high:.1f})",
        f"{plan.time.first_frame_ms / 1e3:.2f} s",
        f"{100 * plan.memory_share:.0f}%",
        f"{plan.dollars_per_hour:.2f}",
        f"{plan.dollars_per_stream_hour:.2f}",
        plan.bound,
    )
