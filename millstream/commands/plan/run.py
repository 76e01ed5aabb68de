"""`millstream plan`: from what was asked to ranked plans on a terminal. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from millstream.commands.plan.options import PlanOptions
from millstream.commands.plan.plan_text import (
    heading,
    legend,
    remedy_record,
    run_compare,
    show_remedies,
    verdict,
)
from millstream.core.config import GIB
from millstream.core.files import write_whole
from millstream.planner.answer_page import html_report
from millstream.planner.hardware import Device
from millstream.planner.judge import Plan
from millstream.planner.questions.remedies import Remedy, remedies
from millstream.planner.record import answer_record
from millstream.planner.search import PlanAnswer, largest, search

SHOWN = 12
"""Plans on a terminal and in JSON: the best ones."""


def run_plan(options: PlanOptions) -> bool:
    """Print the answer; return whether some plan holds."""
    fleets = options.fleets()
    ask = options.ask_of(fleets[0])
    only = options.only
    most = options.most
    html = options.html
    if len(fleets) > 1:
        return run_compare(ask, fleets, only=only, most=most, html=html, as_json=options.as_json)
    found = None if most is None else largest(ask, most, only=only)
    answer = found[1] if found else search(ask, only=only)
    helps = () if answer.best.holds or most is not None else remedies(ask, only=only)
    if html is not None:
        write_whole(html, html_report(answer))
    if options.as_json:
        record = {**answer_record(answer, shown=SHOWN), "remedies": [remedy_record(each) for each in helps]}
        print(
            json.dumps(
                record if most is None else {**record, "max": {most: found[0] if found else None}}, indent=2
            )
        )
    else:
        if most is not None:
            print(_most_line(most, found, answer))
        show(answer, Console(), helps)
    return answer.best.holds


def show(answer: PlanAnswer, console: Console, helps: Sequence[Remedy] = ()) -> None:
    """Every plan in a line, why the others lost, then the best one taken apart."""
    for line in heading(answer.best.ask):
        console.print(line, highlight=False)
    console.print(verdict(answer.best), highlight=False)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for head in ("topology", "FPS", "first", "chunk", "memory", "streams", "devices", "$/h each", "bound"):
        table.add_column(head, no_wrap=True)
    pareto = answer.pareto
    for plan in answer.plans[:SHOWN]:
        table.add_row(*_row(plan, on_front=plan in pareto))
    console.print(table)
    for line in legend(answer.best):
        console.print(line, highlight=False)
    for plan in answer.plans[1:SHOWN]:
        console.print(f"  {plan.layout}: {answer.why_not(plan)}", highlight=False)
    if len(answer.plans) > SHOWN:
        console.print(f"  and {len(answer.plans) - SHOWN} more", highlight=False)
    show_remedies(answer.best, helps, console)
    show_parts(answer.best, console)


def show_parts(plan: Plan, console: Console) -> None:
    """Where the time of a chunk and the memory of a device go."""
    call = plan.time.call
    time = plan.time
    console.print(f"\n{plan.layout} with {plan.work.software.name} kernels, taken apart", highlight=False)
    table = Table("a chunk", "ms", box=None)
    parts = {"products": call.products, "attention": call.attention, "between products": call.elementwise}
    parts["communication"] = call.communication
    for name, each in parts.items():
        table.add_row(f"{name} ({time.calls:.1f} calls)", f"{time.calls * each:.1f}")
    beside = {
        "VAE decode": time.decode_ms,
        "VAE encode": time.encode_ms,
        "host": time.host_ms,
        "transport": time.transport_ms,
    }
    for name, ms in beside.items():
        if ms:
            table.add_row(name, f"{ms:.1f}")
    table.add_section()
    table.add_row("from chunk to chunk", f"{time.period_ms:.1f}")
    table.add_row("a chunk plays for", f"{plan.ask.work.deadline_ms:.1f}")
    console.print(table)
    for need in plan.needs:
        memory = Table(f"memory of a device ({need.role})", "GiB", box=None)
        for name, size in need.fixed.items():
            memory.add_row(name, f"{size / GIB:.2f}")
        for name, size in need.per_session.items():
            memory.add_row(f"{name}, per session", f"{size / GIB:.2f}")
        console.print(memory)


def show_device(device: Device) -> None:
    """Show the rates that a machine reaches."""
    rates = device.rates
    table = Table(device.name, "measured", box=None)
    table.add_row("memory", f"{device.memory_gib:.1f} GiB")
    table.add_row("matmul", f"{rates.matmul_tflops:.3g} TFLOP/s")
    if rates.fp8_tflops is not None:
        table.add_row("matmul, fp8", f"{rates.fp8_tflops:.3g} TFLOP/s")
    table.add_row("attention", f"{rates.attention_tflops:.3g} TFLOP/s")
    for width, rate in rates.conv_tflops:
        table.add_row(f"convolution, {width} channels", f"{rate:.3g} TFLOP/s")
    for width, rate in rates.deep_conv_tflops:
        table.add_row(f"convolution over time, {width} channels", f"{rate:.3g} TFLOP/s")
    table.add_row("copy", f"{1e3 * rates.bandwidth_tb_s:.3g} GB/s")
    table.add_row("launch", f"{rates.launch_us:.2g} us")
    table.add_row(
        device.link.name, f"{device.link.alpha_us:.3g} us + bytes / {device.link.beta_gb_s:.3g} GB/s"
    )
    Console().print(table)


def _row(plan: Plan, *, on_front: bool) -> tuple[str, ...]:
    mark = ("*" if on_front else " ") if plan.holds else "-"
    return (
        f"{mark} {plan.layout}",
        f"{plan.fps:.1f}" if plan.fps >= 1 else f"{plan.fps:.2g}",
        f"{plan.time.first_frame_ms / 1e3:.2f} s",
        f"{plan.time.period_ms:.0f} ms"
        if plan.time.period_ms < 1e4
        else f"{plan.time.period_ms / 1e3:.0f} s",
        f"{100 * plan.memory_share:.0f}%",
        str(plan.sessions_per_replica),
        f"{plan.replicas} x {plan.layout.num_devices}",
        f"{plan.dollars_per_stream_hour:.2f}",
        plan.bound,
    )


def _most_line(quantity: str, found: tuple[int, PlanAnswer] | None, answer: PlanAnswer) -> str:
    if found is None:
        return f"no {quantity} holds the promise"
    stream = answer.best.ask.work.stream
    value = f"{stream.height}x{stream.width}" if quantity == "size" else str(found[0])
    most = "most sessions that hold" if quantity == "sessions" else f"largest {quantity} that holds"
    return f"the {most}: {value}, with {answer.best.layout}"
