"""`millstream plan scale`: what more devices buy, and where that ends. Loads no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from millstream.commands.plan.options import ScaleOptions
from millstream.commands.plan.plan_text import heading
from millstream.core.errors import ConfigError
from millstream.core.files import write_whole
from millstream.planner.questions.scale import Rung, Stall, scaling, stall
from millstream.report.page import page
from millstream.report.svg import curves


def run_plan_scale(options: ScaleOptions) -> None:
    if options.topology is not None:
        raise ConfigError("every topology is tried here; leave --topology out")
    ask = options.ask()
    rungs = scaling(ask)
    end = stall(rungs)
    if options.html is not None:
        write_whole(options.html, _page(heading(ask)[0], rungs, end))
    if options.as_json:
        print(json.dumps({"rungs": [_record(rung) for rung in rungs], "stall": _stall_record(end)}, indent=2))
        return
    console = Console()
    for line in heading(ask):
        console.print(line, highlight=False)
    table = Table("devices", "FPS of one", "as", "times one device", "streams of all", "$/h each", box=None)
    for rung in rungs:
        table.add_row(*_row(rung, rungs[0]))
    console.print(table)
    for line in format_ends(rungs, end):
        console.print(line, highlight=False)


def format_ends(rungs: Sequence[Rung], end: Stall | None) -> tuple[str, str]:
    last = rungs[-1]
    one = "one stream gets quicker up to the last of them"
    if end is not None:
        one = (
            f"one stream stalls at {end.devices} devices, twice as many gain {100 * end.gain:.0f}%: {end.why}"
        )
    fewest = next((rung for rung in rungs if rung.streams), None)
    if fewest is None:
        return one, "none of them carries a stream at the promised rate"
    share = last.streams / last.devices
    many = (
        f"streams do not stall: replicas share nothing, {last.devices} devices carry {last.streams}, "
        f"{share:.3g} each"
    )
    return one, many


def _row(rung: Rung, first: Rung) -> tuple[str, ...]:
    plan = rung.quickest
    price = rung.devices * plan.ask.fleet.device.dollars_per_hour / rung.streams if rung.streams else math.inf
    return (
        str(rung.devices),
        f"{plan.fps:.1f}",
        str(plan.layout),
        f"{plan.fps / first.quickest.fps:.2f}",
        str(rung.streams),
        f"{price:.2f}" if rung.streams else "-",
    )


def _record(rung: Rung) -> dict[str, Any]:
    call = rung.quickest.time.call
    share = call.communication / call.total
    found = {"devices": rung.devices, "fps": rung.quickest.fps, "topology": str(rung.quickest.layout)}
    return {**found, "streams": rung.streams, "communication_share": share}


def _stall_record(end: Stall | None) -> dict[str, Any] | None:
    return None if end is None else {"devices": end.devices, "gain": end.gain, "why": end.why}


def _page(title: str, rungs: Sequence[Rung], end: Stall | None) -> str:
    first = rungs[0].quickest.fps
    powers = [(math.log2(rung.devices), rung) for rung in rungs]
    speed = {"one stream": [(power, rung.quickest.fps / first) for power, rung in powers]}
    carried = {"streams": [(power, float(rung.streams)) for power, rung in powers]}
    one, many = format_ends(rungs, end)
    axis = "devices, as powers of two: 10 is 1,024"
    return page(
        title,
        [
            f"<h1>{title}</h1><p class='verdict{'' if end is None else ' no'}'>{one}.</p>",
            "<h2>How quick one stream is</h2>",
            curves(speed, x_label=axis, y_label="times one device"),
            f"<h2>How many streams all carry</h2><p class='note'>{many}.</p>",
            curves(carried, x_label=axis, y_label="streams at the promised rate"),
        ],
    )
