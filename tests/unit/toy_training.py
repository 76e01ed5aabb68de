"""A text encoder, a DiT and a pool of clips of toy size, every method on them, and a stage that trains
one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from millstream.core.config import ActionsConfig, BrookTextConfig, ConditionsConfig, DiTConfig
from millstream.models.brook.text import BrookText
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.train.distil.pool_training import PoolTraining
from millstream.train.loop import Method, StepReport, Training, TurnTraining, train_stage
from millstream.train.methods.flow import FlowMethod, TextAndDiT
from millstream.train.options import (
    ConsistencyOptions,
    DMDOptions,
    FlowOptions,
    MethodOptions,
    ODEOptions,
    SelfForcingOptions,
)
from millstream.train.plan import StagePlan
from millstream.train.pool import LatentPool
from tests.unit.models_for_tests import shaken

CPU = torch.device("cpu")
TEXT = BrookTextConfig(vocabulary=9, tokens=5, width=16, layers=1, heads=2)
SMALL = DiTConfig(
    layers=2, width=32, heads=2, ffn=48, channels=2, text_width=16, text_tokens=5, time_features=16
)
LEVELS = (1000.0, 750.0)


def pair(seed: int = 0, *, steered: bool = False) -> TextAndDiT:
    torch.manual_seed(seed)
    made = TextAndDiT(BrookText(TEXT), CausalDiT(SMALL))
    if not steered:
        return made
    injectors = Injectors(ConditionsConfig(actions=ActionsConfig(keys=("a", "d", "w"))), SMALL)
    return TextAndDiT(made.text, made.dit, shaken(injectors, scale=2.0))


def pool(clips: int = 8, *, steered: bool = False) -> LatentPool:
    """Random clips; in each frame of those that are steered random keys are held."""
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(clips, 6, 2, 4, 4, generator=generator).cumsum(1)
    ids = torch.randint(1, 9, (clips, 2, 5), generator=generator)
    held = (torch.rand(clips, 6, 3, generator=generator) > 0.5).float()
    return LatentPool(
        latents_KFCYX=latents,
        ids_KWS=ids,
        true_from_K=torch.arange(clips) % 2 * 3,
        actions_KFA=held if steered else None,
    )


def stage(steps: int = 8, **changes: object) -> StagePlan:
    fields = dict(name="toy", method="flow", steps=steps, batch=4, lr=3e-3, warm_up=2, ema=0.9)
    return StagePlan(**(fields | changes))


def run(training: Training, folder: Path, plan: StagePlan, **options: Any) -> list[StepReport]:
    reports: list[StepReport] = []
    folder.mkdir(exist_ok=True)
    train_stage(plan, training, folder, device=CPU, report=reports.append, **options)
    return reports


def alone(method: Method, plan: StagePlan) -> TurnTraining:
    return TurnTraining(method, plan, seed=1, device=CPU)


def flow(**options: Any) -> Callable[[StagePlan], Training]:
    return lambda plan: alone(
        FlowMethod(pair(), pool(), batch=4, options=FlowOptions(window=6, **options)), plan
    )


def distilled(
    options: MethodOptions,
    plan: StagePlan | None = None,
    *,
    favoured: Sequence[int] = (),
    compiled: bool = False,
    steered: bool = False,
) -> PoolTraining:
    """A student that begins as its teacher."""
    teacher = pair(1, steered=steered).requires_grad_(False)
    plan = plan or stage(batch=2)
    return PoolTraining(
        teacher.dit,
        teacher,
        pool(steered=steered),
        plan,
        options,
        levels=LEVELS,
        seed=1,
        favoured=favoured,
        favoured_by=9.0,
        compiled=compiled,
    )


def dmd(**options: Any) -> DMDOptions:
    return DMDOptions(window=6, **options)


def self_forcing(**options: Any) -> SelfForcingOptions:
    return SelfForcingOptions(longest=3, streams=2, window=6, **options)


def _of(options: MethodOptions) -> Callable[[StagePlan], Training]:
    return lambda plan: distilled(options, plan)


METHODS: dict[str, Callable[[StagePlan], Training]] = {
    "teacher forcing": flow(),
    "first chunk twice": flow(noisy=(0, 0, 1)),
    "whole windows too": flow(whole=True),
    "diffusion forcing": flow(forcing="diffusion"),
    "ode": _of(ODEOptions(teacher_steps=3, window=6)),
    "ode, diffusion forced": _of(ODEOptions(teacher_steps=3, forcing="diffusion", window=6)),
    "consistency": _of(ConsistencyOptions(teacher_steps=3, window=6)),
    "matching, teacher forced": _of(dmd(student_every=1)),
    "matching, diffusion forced": _of(dmd(forcing="diffusion", critic_first=1)),
    "self-forcing": _of(self_forcing(begun=0.3, switched=0.3, student_every=2)),
    "self-forcing, critic first": _of(self_forcing(begun=0.5, whole=0.5, student_every=1, critic_first=2)),
}
"""What trains a stage of that plan."""
