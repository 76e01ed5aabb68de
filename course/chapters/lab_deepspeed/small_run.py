"""A small video model that learns a few steps, by a plan of ours or by DeepSpeed, under the same loop."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course.lab import held_state, quickest_s
from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT
from millstream.planner.memory import dit_parameters
from millstream.planner.training import TrainingState
from millstream.train.parallel.deepspeed import DeepSpeedLearner
from millstream.train.parallel.groups import create_training_groups
from millstream.train.parallel.learner import Learner, make_learner
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.task import FlowRows, StepOptions, TrainingTask
from millstream.train.sequence import ChunkedSequence, diffusion_forced

MODEL = DiTConfig(
    layers=2, width=48, heads=4, ffn=96, channels=4, text_width=16, text_tokens=4, time_features=32
)
CHUNKS = 2
FRAMES = 2
SIZE = (4, 4)
BATCH = 4
STEPS = 2
PARAMETERS = dit_parameters(MODEL)


class SmallRun(NamedTuple):
    losses: list[float]
    state: TrainingState
    seconds: float


def trained(
    rank: int, world: int, plan: ParallelPlan, deepspeed: Mapping[str, Any] | None = None
) -> SmallRun:
    """On one rank of a group, or alone. DeepSpeed's configuration has it do the same."""
    device = torch.device("cpu")
    torch.manual_seed(0)
    dit = CausalDiT(MODEL)
    task = TrainingTask(
        dit=dit,
        sequence=ChunkedSequence(diffusion_forced(CHUNKS, FRAMES, CHUNKS * FRAMES), MODEL, SIZE, device),
        latent_size=SIZE,
        loss=lambda flow, target: (flow - target).square().mean(),
        plan=plan,
        groups=create_training_groups(plan, device),
        options=StepOptions(),
    )
    if deepspeed is not None:
        os.environ["LOCAL_RANK"] = str(rank)  # as torchrun does
    learner = make_learner(task) if deepspeed is None else DeepSpeedLearner(task, deepspeed, BATCH)
    losses = list[float]()
    seen = list[TrainingState]()

    def look(norm: float) -> bool:
        """When all gradients are there, before the step."""
        seen.append(_held(learner, dit))
        return True

    for rows in _batches():
        losses.append(float(learner.learn(learner.mine(rows), look).loss))
    again = learner.mine(next(_batches()))
    return SmallRun(losses, seen[-1], quickest_s(lambda: learner.learn(again), tries=2))


def _held(learner: Learner, dit: CausalDiT) -> TrainingState:
    """Return what DeepSpeed holds, with weights in the parts that it attaches to the parameters; its
    gradients are internal to it."""
    parts = [getattr(each, "ds_tensor", None) for each in dit.parameters()]
    everything = [*dit.parameters(), *(part for part in parts if part is not None)]
    inner = getattr(learner.optimiser, "optimizer", learner.optimiser)
    return held_state(everything, inner)


def largest_difference(found: Iterable[float], expected: Iterable[float]) -> float:
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))


def _batches() -> Iterator[FlowRows]:
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        clean, noise = torch.randn(2, BATCH, CHUNKS * FRAMES, MODEL.channels, *SIZE, generator=generator)
        level = torch.rand(BATCH, CHUNKS, generator=generator).repeat_interleave(FRAMES, dim=1)
        text: Tensor = torch.randn(BATCH, MODEL.text_tokens, MODEL.text_width, generator=generator)
        yield FlowRows(
            torch.lerp(clean, noise, level[..., None, None, None]), 1000 * level, text, noise - clean
        )
