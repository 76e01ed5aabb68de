"""`millstream plan train`: can this student be distilled with that teacher and critic on these devices? Loads
no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from millstream.commands.paths import profile_path
from millstream.commands.plan.options import PlanTrainOptions
from millstream.core.config import GIB, Recompute, parse_size
from millstream.planner.checkpoints import resolve_model
from millstream.planner.hardware import parse_fleet
from millstream.planner.profile import read_profile
from millstream.planner.roles import RolePlacement, TrainAsk, placements
from millstream.planner.training import Sharding


def train_ask(options: PlanTrainOptions) -> TrainAsk:
    student = resolve_model(options.student)
    (height, width) = parse_size(options.size)
    return TrainAsk(
        student=student,
        teacher=resolve_model(options.teacher),
        critic=resolve_model(options.critic),
        fleet=parse_fleet(options.gpus, here=read_profile(profile_path())),
        stream=replace(student.stream, height=height, width=width),
        frames=options.frames,
        batch=options.batch,
        sharding=Sharding(zero=options.zero, offload=options.offload),
        hybrid=options.hybrid,
        recompute=cast(Recompute, options.recompute),
        ema=options.ema,
        lora_rank=options.lora,
    )


def run_plan_train(options: PlanTrainOptions) -> bool:
    """Print the placements, best first; return whether one fits."""
    ask = train_ask(options)
    found = placements(ask)
    if options.as_json:
        print(json.dumps([_record(placement) for placement in found], indent=2))
    else:
        show(ask, found, Console())
    return not found[0].missing


def show(ask: TrainAsk, found: tuple[RolePlacement, ...], console: Console) -> None:
    adapters = f", LoRA rank {ask.lora_rank}" if ask.lora_rank else ""
    console.print(
        f"{ask.student.name}{adapters} with teacher {ask.teacher.name} and critic {ask.critic.name} on "
        f"{ask.fleet.name}: "
        f"{ask.frames} frames at {ask.stream.height}x{ask.stream.width}, ZeRO-{ask.sharding.zero}, "
        f"{ask.recompute} recompute",
        highlight=False,
    )
    placements_table(found, console)


def placements_table(found: Sequence[RolePlacement], console: Console) -> None:
    """Best first, and what the best holds."""
    table = Table(
        "placement", "step s", "sync ms", "devices", "GiB a device", "host GiB", "what does not fit", box=None
    )
    for placement in found:
        for index, group in enumerate(placement.groups):
            first = index == 0
            table.add_row(
                placement.name if first else "",
                f"{placement.step_ms / 1e3:.1f}" if first else "",
                f"{placement.sync_ms:.1f}" if first else "",
                f"{group.devices} {group.name}",
                f"{group.total / GIB:.1f}",
                f"{group.devices * group.host_bytes / GIB:.0f}",
                placement.missing if first else "",
            )
    console.print(table)
    for group in found[0].groups:
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in group.parts.items())
        console.print(f"{found[0].name}, {group.name} (GiB): {parts}", highlight=False)


def _record(placement: RolePlacement) -> dict[str, Any]:
    return {**asdict(placement), "fits": not placement.missing}
