"""A text encoder, a DiT and a pool of clips of toy size, every method on them, and a stage that trains one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch

from millstream.core.config import BrookTextConfig, DiTConfig
from millstream.models.brook.text import BrookText
from millstream.models.dit import CausalDiT
from millstream.trainer.loop import Method, StepReport, train_stage
from millstream.trainer.methods.dmd import DMDMethod
from millstream.trainer.methods.flow import FlowMethod, TextAndDiT
from millstream.trainer.methods.ode import ODEMethod
from millstream.trainer.methods.self_forcing import SelfForcingMethod
from millstream.trainer.options import DMDOptions, FlowOptions, ODEOptions, SelfForcingOptions
from millstream.trainer.plan import StagePlan
from millstream.trainer.pool import LatentPool

CPU = torch.device("cpu")
TEXT = BrookTextConfig(vocabulary=9, tokens=5, width=16, layers=1, heads=2)
SMALL = DiTConfig(layers=2, width=32, heads=2, ffn=48, channels=2, text_width=16, text_tokens=5, time_features=16)
LEVELS = (1000.0, 750.0)


def pair(seed: int = 0) -> TextAndDiT:
    torch.manual_seed(seed)
    return TextAndDiT(BrookText(TEXT), CausalDiT(SMALL))


def pool(clips: int = 8) -> LatentPool:
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(clips, 6, 2, 4, 4, generator=generator).cumsum(1)
    ids = torch.randint(1, 9, (clips, 2, 5), generator=generator)
    return LatentPool(latents_KFCYX=latents, ids_KWS=ids, true_from_K=torch.arange(clips) % 2 * 3)


def stage(steps: int = 8, **changes: object) -> StagePlan:
    fields = dict(name="toy", method="flow", steps=steps, batch=4, lr=3e-3, warm_up=2, ema=0.9)
    return StagePlan(**(fields | changes))


def run(method: Method, folder: Path, plan: StagePlan, **options: object) -> list[StepReport]:
    reports: list[StepReport] = []
    folder.mkdir(exist_ok=True)
    train_stage(plan, method, folder, seed=1, device=CPU, report=reports.append, **options)
    return reports


def flow(**options: object) -> FlowMethod:
    return FlowMethod(pair(), pool(), batch=4, options=FlowOptions(window=6, **options))


def ode_method(options: ODEOptions) -> ODEMethod:
    teacher = pair(1).requires_grad_(False)
    student = deepcopy(teacher)
    student.dit.requires_grad_(True)
    return ODEMethod(student, teacher, pool(), batch=4, levels=LEVELS, options=options)


def dmd(**options: object) -> DMDMethod:
    return DMDMethod(*roles(), pool(), batch=2, levels=LEVELS, options=DMDOptions(window=6, **options))


def self_forcing(*, compiled: bool = False, **options: float) -> SelfForcingMethod:
    chosen = SelfForcingOptions(longest=3, streams=2, window=6, **options)
    return SelfForcingMethod(*roles(), pool(), batch=2, levels=LEVELS, options=chosen, compiled=compiled)


def roles() -> tuple[TextAndDiT, TextAndDiT, CausalDiT]:
    """A student and a critic that begin as their teacher."""
    teacher = pair(1).requires_grad_(False)
    student, critic = deepcopy(teacher), deepcopy(teacher.dit)
    for module in (student.dit, critic):
        module.requires_grad_(True)
    return student, teacher, critic


METHODS: dict[str, Callable[[], Method]] = {
    "teacher forcing": flow,
    "first chunk twice": lambda: flow(noisy=(0, 0, 1)),
    "whole windows too": lambda: flow(whole=True),
    "diffusion forcing": lambda: flow(forcing="diffusion"),
    "ode": lambda: ode_method(ODEOptions(teacher_steps=3, window=6)),
    "ode, diffusion forced": lambda: ode_method(ODEOptions(teacher_steps=3, forcing="diffusion", window=6)),
    "matching, teacher forced": lambda: dmd(student_every=1),
    "matching, diffusion forced": lambda: dmd(forcing="diffusion", critic_first=1),
    "self-forcing": lambda: self_forcing(begun=0.3, switched=0.3, student_every=2),
    "self-forcing, critic first": lambda: self_forcing(begun=0.5, whole=0.5, student_every=1, critic_first=2),
}
