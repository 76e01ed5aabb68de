"""`millstream plan`: from what was asked to ranked plans on a terminal. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from millstream.commands.paths import models_folder
from millstream.core.config import GIB
from millstream.core.errors import ConfigError, DeviceError
from millstream.core.files import write_whole
from millstream.core.presets import apply_schedule
from millstream.core.topology import Topology
from millstream.planner.checkpoints import resolve_model
from millstream.planner.hardware import Device, parse_fleet
from millstream.planner.judge import Plan, PlanAsk
from millstream.planner.profile import read_profile
from millstream.planner.record import answer_record
from millstream.planner.report import html_report
from millstream.planner.search import PlanAnswer, largest, search
from millstream.planner.software import SOFTWARE, Software, find_software
from millstream.planner.workload import Precision, Workload

SHOWN = 12
"""Plans on a terminal and in JSON: the best ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """What a person asks, as they spell it."""

    model: str
    gpus: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the model's own stream."""
    schedule: str | None = None
    sessions: int = 1
    first_frame_s: float | None = None
    precision: str = "native"
    software: str | None = None
    batch: int = 1
    video_in: bool = False
    topology: str | None = None
    price: float | None = None
    profile: Path | None = None

    def ask(self) -> PlanAsk:
        spec = resolve_model(self.model)
        if self.profile is not None and not self.profile.is_file():
            raise DeviceError(f"{self.profile} does not exist; write it with millstream plan calibrate --out")
        fleet = parse_fleet(self.gpus, price=self.price, here=read_profile(self.profile or profile_path()))
        stream = apply_schedule(spec.stream, self.schedule) if self.schedule else spec.stream
        if self.precision not in ("native", "fp8"):
            raise ConfigError(f"--precision must be native or fp8, got {self.precision!r}")
        work = Workload(
            spec=spec,
            stream=replace(stream, **self.changes),
            precision=cast(Precision, self.precision),
            software=find_software(self.software) if self.software else _own_software(fleet.device),
            batch=self.batch,
            video_in=self.video_in,
        )
        first = None if self.first_frame_s is None else 1e3 * self.first_frame_s
        return PlanAsk(
            work=work,
            fleet=fleet,
            sessions=max(self.sessions, self.batch) if self.sessions > 0 else self.sessions,
            first_frame_ms=first,
        )


def _own_software(device: Device) -> Software:
    """What `millstream serve` would run there; on a mesh the plain path, see `Workload.on`."""
    return device.fitted or SOFTWARE["processor" if device.processor else "fast"]


def profile_path() -> Path:
    """Where this machine's calibration lies."""
    return models_folder().parent / "profile.json"


def run_plan(request: PlanRequest, *, most: str | None, html: Path | None, as_json: bool) -> bool:
    """Print the answer; whether some plan holds."""
    ask = request.ask()
    only = Topology.parse(request.topology) if request.topology else None
    found = None if most is None else largest(ask, most, only=only)
    answer = found[1] if found else search(ask, only=only)
    if html is not None:
        write_whole(html, html_report(answer))
    if as_json:
        record = answer_record(answer, shown=SHOWN)
        print(json.dumps(record if most is None else {**record, "max": {most: found[0] if found else None}}, indent=2))
    else:
        if most is not None:
            print(_most_line(most, found, answer))
        show(answer, Console())
    return answer.best.holds


def show(answer: PlanAnswer, console: Console) -> None:
    """Every plan in a line, why the others lost, then the best one taken apart."""
    for line in _heading(answer.best.ask):
        console.print(line, highlight=False)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for head in ("topology", "FPS", "first", "chunk", "memory", "streams", "devices", "$/h", "bound"):
        table.add_column(head, no_wrap=True)
    pareto = answer.pareto
    for plan in answer.plans[:SHOWN]:
        table.add_row(*_row(plan, on_front=plan in pareto))
    console.print(table)
    console.print("* nothing is both cheaper and quicker; - misses the promise; streams of one replica")
    for plan in answer.plans[1:SHOWN]:
        console.print(f"  {plan.layout}: {answer.why_not(plan)}", highlight=False)
    if len(answer.plans) > SHOWN:
        console.print(f"  and {len(answer.plans) - SHOWN} more", highlight=False)
    for shortfall in answer.best.shortfalls:
        console.print(f"no plan holds this promise; in the way of the nearest: {shortfall.said}", highlight=False)
    show_parts(answer.best, console)


def _heading(ask: PlanAsk) -> tuple[str, str]:
    stream, device, work = ask.work.stream, ask.fleet.device, ask.work
    rates = "measured" if device.is_measured else "from the datasheet"
    return (
        f"{work.spec.name} at {stream.height}x{stream.width}, window {stream.window}, {len(stream.steps)} steps: "
        f"{stream.fps:g} FPS for {ask.sessions} on {ask.fleet.name}",
        f"{work.software.name} kernels{' (eager on a mesh)' if work.software.one_device else ''}, {work.precision} precision, "
        f"rates {rates}, ${device.dollars_per_hour:g} a device-hour",
    )


def show_parts(plan: Plan, console: Console) -> None:
    """Where the time of a chunk and the memory of a device go."""
    call, time = plan.time.call, plan.time
    console.print(f"\n{plan.layout} with {plan.work.software.name} kernels, taken apart", highlight=False)
    table = Table("a chunk", "ms", box=None)
    parts = {"products": call.products, "attention": call.attention, "between products": call.elementwise}
    parts["communication"] = call.communication
    for name, each in parts.items():
        table.add_row(f"{name} ({time.calls:.1f} calls)", f"{time.calls * each:.1f}")
    beside = {"VAE decode": time.decode_ms, "VAE encode": time.encode_ms, "host": time.host_ms, "transport": time.transport_ms}
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
    """What a machine reaches."""
    rates = device.rates
    table = Table(device.name, "measured", box=None)
    table.add_row("memory", f"{device.memory_gib:.1f} GiB")
    table.add_row("matrix product", f"{rates.matmul_tflops:.3g} TFLOP/s")
    if rates.fp8_tflops is not None:
        table.add_row("matrix product, fp8", f"{rates.fp8_tflops:.3g} TFLOP/s")
    table.add_row("attention", f"{rates.attention_tflops:.3g} TFLOP/s")
    for width, rate in rates.conv_tflops:
        table.add_row(f"convolution, {width} channels", f"{rate:.3g} TFLOP/s")
    for width, rate in rates.deep_conv_tflops:
        table.add_row(f"convolution over time, {width} channels", f"{rate:.3g} TFLOP/s")
    table.add_row("copy", f"{1e3 * rates.bandwidth_tb_s:.3g} GB/s")
    table.add_row("launch", f"{rates.launch_us:.2g} us")
    table.add_row(device.link.name, f"{device.link.alpha_us:.3g} us + bytes / {device.link.beta_gb_s:.3g} GB/s")
    Console().print(table)


def _row(plan: Plan, *, on_front: bool) -> tuple[str, ...]:
    mark = ("*" if on_front else " ") if plan.holds else "-"
    return (
        f"{mark} {plan.layout}",
        f"{plan.fps:.1f}",
        f"{plan.time.first_frame_ms / 1e3:.2f} s",
        f"{plan.time.period_ms:.0f} ms",
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
    return f"the largest {quantity} that holds: {value}, with {answer.best.layout}"
