"""Pipeline schedules that really run, and what each rank did when. Used by the scripts of this chapter and by
a benchmark.

Two ranks train a small DiT by the learner that `millstream train` uses: ranks, schedules, messages and
gradients are real. Only the work is made to measure: every block sleeps equally long in its forward pass, for
the gradients of its input and for those of its weights, beside which its own arithmetic is small. Passes are
then as uniform as the formula wants them. Around every pass that torch's schedule asks of a stage the clock
is read, which all processes of a machine share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from millstream.core.config import DiTConfig
from millstream.mesh.local_ranks import on_ranks
from millstream.models.dit import CausalDiT
from millstream.train.parallel.groups import create_training_groups
from millstream.train.parallel.learner import make_learner
from millstream.train.parallel.plan import ParallelPlan, Schedule
from millstream.train.parallel.task import FlowRows, StepOptions, TrainingTask
from millstream.train.sequence import ChunkedSequence, diffusion_forced

RANKS = 2
MICRO_BATCHES = 4
SLEEP_S = 0.04
"""A block's, forward, and twice in its backward pass."""
MODEL = DiTConfig(
    layers=4, width=48, heads=4, ffn=96, channels=4, text_width=16, text_tokens=8, time_features=32
)
CHUNKS = 2
FRAMES_PER_CHUNK = 2
WINDOW = 4
LATENT_SIZE = (8, 8)
UNITS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
"""Length of each kind of pass in the formula."""
PassKind = Literal["F", "B", "I", "W"]
"""A forward pass; a backward pass, or its two halves: gradients of what came in, and of weights."""


class PipelinePass(NamedTuple):
    kind: PassKind
    part: int
    """Part of the model."""
    micro_batch: int
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


RankPasses = list[list[PipelinePass]]
"""Passes of each rank, in order."""


class PacedInput(torch.autograd.Function):
    """Block's input, unchanged but delayed; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(SLEEP_S)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(SLEEP_S)
        return gradient


class PacedWeight(torch.autograd.Function):
    """A weight, whose gradient takes a while."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(SLEEP_S)
        return gradient


def paced(dit: CausalDiT) -> CausalDiT:
    for block in dit.blocks:
        block.pace = nn.Parameter(torch.ones(()))
        block.register_forward_pre_hook(
            lambda block, given: (PacedInput.apply(given[0]) * PacedWeight.apply(block.pace), *given[1:])
        )
    return dit


class PassRecorder:
    """Reads the clock around what stages are asked to do."""

    def __init__(self) -> None:
        self.actions: list[PipelinePass] = []
        kinds: dict[str, Callable[[dict[str, Any]], PassKind]] = {
            "forward_one_chunk": lambda given: "F",
            "backward_one_chunk": lambda given: "B" if given.get("full_backward", True) else "I",
            "backward_weight_one_chunk": lambda given: "W",
        }
        for method, kind_of in kinds.items():
            setattr(PipelineStage, method, self._around(getattr(PipelineStage, method), kind_of))

    def _around(
        self, method: Callable[..., Any], kind_of: Callable[[dict[str, Any]], PassKind]
    ) -> Callable[..., Any]:
        def recorded(stage: PipelineStage, micro_batch: int, *args: Any, **given: Any) -> Any:
            begun = time.perf_counter()
            answer = method(stage, micro_batch, *args, **given)
            self.actions.append(
                PipelinePass(kind_of(given), stage.stage_index, micro_batch, begun, time.perf_counter())
            )
            return answer

        return recorded


def train(
    rank: int, world: int, schedule: Schedule, steps: int, micro_batches: int
) -> list[list[PipelinePass]]:
    """Train and return the passes of this rank in each step."""
    plan = ParallelPlan(pp=world, schedule=schedule, micro_batches=micro_batches)
    device = torch.device("cpu")
    torch.manual_seed(0)
    recorder = PassRecorder()
    learner = make_learner(
        TrainingTask(
            dit=paced(CausalDiT(MODEL)),
            sequence=ChunkedSequence(
                diffusion_forced(CHUNKS, FRAMES_PER_CHUNK, WINDOW), MODEL, LATENT_SIZE, device
            ),
            latent_size=LATENT_SIZE,
            loss=mean_square,
            plan=plan,
            groups=create_training_groups(plan, device),
            options=StepOptions(),
        )
    )
    frames = CHUNKS * FRAMES_PER_CHUNK
    noisy, target = torch.randn(2, micro_batches, frames, MODEL.channels, *LATENT_SIZE)
    level = torch.full((micro_batches, frames), 500.0)
    text = torch.randn(micro_batches, MODEL.text_tokens, MODEL.text_width)
    found = []
    for _ in range(1 + steps):  # the first agrees on shapes
        recorder.actions = []
        learner.learn(FlowRows(noisy, level, text, target))
        found.append(recorder.actions)
    return found[1:]


def recorded_steps(schedule: Schedule, steps: int, micro_batches: int = MICRO_BATCHES) -> list[RankPasses]:
    by_rank = on_ranks(train, RANKS, schedule, steps, micro_batches, timeout_s=300.0)
    return [list(step) for step in zip(*by_rank, strict=True)]


def mean_square(flow: Tensor, target: Tensor) -> Tensor:
    return (flow - target).square().mean()


def seconds_of(timeline: RankPasses) -> float:
    actions = [action for rank in timeline for action in rank]
    return max(action.end_s for action in actions) - min(action.begin_s for action in actions)


def waits(timeline: RankPasses) -> float:
    """Share of the time, between the first pass and the last, in which ranks did nothing."""
    busy = sum(action.seconds for rank in timeline for action in rank)
    return 1 - busy / (len(timeline) * seconds_of(timeline))


def replayed(timeline: RankPasses, takes: Callable[[PipelinePass], float]) -> RankPasses:
    """Return the same order of passes with the times they would have if each took as long as `takes` says and
    began as soon as its rank and what it needs were ready."""
    last = max(action.part for rank in timeline for action in rank)
    done = dict[tuple[str, int, int], float]()
    waiting = [list(rank) for rank in timeline]
    made: RankPasses = [[] for _ in timeline]
    while any(waiting):
        before = sum(map(len, waiting))
        for rank, actions in enumerate(waiting):
            while actions and all(need in done for need in _needs(actions[0], last)):
                action = actions.pop(0)
                free = made[rank][-1].end_s if made[rank] else 0.0
                begin = max([free, *(done[need] for need in _needs(action, last))])
                made[rank].append(action._replace(begin_s=begin, end_s=begin + takes(action)))
                done[_kind(action), action.part, action.micro_batch] = begin + takes(action)
        assert sum(map(len, waiting)) < before, f"nobody can go on: {[actions[:1] for actions in waiting]}"
    return made


def _kind(action: PipelinePass) -> str:
    """Both ways of going back leave what the part before waits for."""
    return "B" if action.kind == "I" else action.kind


def _needs(action: PipelinePass, last: int) -> list[tuple[str, int, int]]:
    part = action.part
    micro_batch = action.micro_batch
    match action.kind:
        case "F":
            return [("F", part - 1, micro_batch)] if part else []
        case "W":
            return [("B", part, micro_batch)]
        case _:
            after = [("B", part + 1, micro_batch)] if part < last else []
            return [("F", part, micro_batch), *after]


def mean_times(timeline: RankPasses) -> dict[tuple[PassKind, int], float]:
    """Return the mean seconds of each kind of pass of each part."""
    found = dict[tuple[PassKind, int], list[float]]()
    for action in (action for rank in timeline for action in rank):
        found.setdefault((action.kind, action.part), []).append(action.seconds)
    return {key: fmean(times) for key, times in found.items()}
