"""An engine and a learner of toy size."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache

import torch

from millstream.core.config import StreamConfig
from millstream.core.presets import find_model
from millstream.models.dit import CausalDiT
from millstream.models.registry import LoadedModel, load_model
from millstream.train.rl.algorithms import ALGORITHMS, PictureWorth, RewardGradient
from millstream.train.rl.control import DivergenceControl
from millstream.train.rl.learner import LearnerOptions, ReferenceLearner
from millstream.train.rl.rollouts import RolloutEngine, RolloutPlan
from millstream.train.rl.steps import StepNoise

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
    **options: object,
) -> tuple[RolloutEngine, ReferenceLearner]:
    noise = noise or StepNoise(levels=LEVELS, last=0.1)
    config = config or tiny_config()
    engine, actor = _engine(noise, config)
    asked = _options(control, options)
    kind = ALGORITHMS[asked.algorithm]
    assert issubclass(kind, ReferenceLearner)
    return engine, kind(actor, deepcopy(actor), noise, config, asked, CPU)


def following(
    worth: PictureWorth, noise: StepNoise, control: DivergenceControl | None = None, **options: object
) -> tuple[RolloutEngine, RewardGradient]:
    """An engine and a learner by gradients of `worth`."""
    config = tiny_config()
    engine, actor = _engine(noise, config)
    return engine, RewardGradient(
        actor, deepcopy(actor), noise, config, _options(control, options), CPU, worth
    )


def _engine(noise: StepNoise, config: StreamConfig) -> tuple[RolloutEngine, CausalDiT]:
    torch.manual_seed(0)
    model = tiny_model()
    actor = deepcopy(model.dit).requires_grad_(True)
    return RolloutEngine(actor, model, config, noise, torch.float32), actor


def _options(control: DivergenceControl | None, given: Mapping[str, object]) -> LearnerOptions:
    control = control or DivergenceControl(0.0, 0.0, 1.0)
    held = {"kl_coefficient": control.coefficient, "kl_target": control.target, "kl_bound": control.bound}
    return LearnerOptions(**{"steps": 1, **held, **given})
