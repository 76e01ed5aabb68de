"""An engine and a learner of toy size."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache

import torch

from millstream.core.config import StreamConfig
from millstream.core.presets import find_model
from millstream.models.registry import LoadedModel, load_model
from millstream.trainer.policy.control import DivergenceControl
from millstream.trainer.policy.learner import LearnerOptions, PictureWorth, PolicyLearner
from millstream.trainer.policy.rollouts import RolloutEngine, RolloutPlan
from millstream.trainer.policy.steps import StepNoise

CPU = torch.device("cpu")
LEVELS = (1000.0, 600.0)
PLAN = RolloutPlan(prompts=("sea", "hills"), group=2, chunks=2, seed=7)


@cache
def tiny_model() -> LoadedModel:
    return load_model(find_model("wan-tiny"), ["random:3"], device=CPU, dtype=torch.float32)


def tiny_config(**changes: int) -> StreamConfig:
    return replace(tiny_model().spec.stream, height=32, width=32, window=6, **changes)


def policy(
    noise: StepNoise | None = None,
    control: DivergenceControl | None = None,
    *,
    config: StreamConfig | None = None,
    worth: PictureWorth | None = None,
    **options: object,
) -> tuple[RolloutEngine, PolicyLearner]:
    torch.manual_seed(0)
    model, config, noise = tiny_model(), config or tiny_config(), noise or StepNoise(levels=LEVELS, last=0.1)
    actor = deepcopy(model.dit).requires_grad_(True)
    control = control or DivergenceControl(0.0, 0.0, 1.0)
    learner = PolicyLearner(actor, deepcopy(actor), noise, config, control, LearnerOptions(**options), CPU, worth)
    return RolloutEngine(actor, model, config, noise, torch.float32), learner
