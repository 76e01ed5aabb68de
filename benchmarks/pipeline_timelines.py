"""What each rank of a pipeline does when: every schedule runs for real, and its bubble is held against the formula's.

    python -m benchmarks.pipeline_timelines
    python -m benchmarks.pipeline_timelines --page      # draws the last result again and writes it into docs/training.md

Two ranks over gloo train a small DiT by the learner that `millstream train` uses: ranks, schedules, messages and gradients are
real. Only the work is made to measure: every block sleeps equally long in its forward pass, for the gradients of its input and
for those of its weights, beside which its own arithmetic is small. Passes are then as uniform as the formula wants them, and
other programs on the machine take little from them; nothing here says how fast a model is. Around every pass that torch's
schedule asks of a stage the clock is read, which all processes of a machine share. Of several steps the quickest is shown.

`formula` is the planner's, for passes that take equally long and messages that take no time. `replayed` takes the order that
ran and what its passes took on average, part by part, still without messages: what the formula leaves out because passes are
unequal is between the two, and what messages and Python take is between `replayed` and `measured`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from benchmarks.pages import row, write_between
from benchmarks.report import RESULTS, write_report
from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT
from millstream.parallel.training.groups import create_training_groups
from millstream.parallel.training.learner import make_learner
from millstream.parallel.training.plan import ParallelPlan, Schedule
from millstream.parallel.training.task import FlowRows, StepOptions, TrainingTask
from millstream.planner.bubbles import TRAINED, bubble
from millstream.trainer.sequence import ChunkedSequence, diffusion_forced
from tests.dist.ranks import run_ranks

RANKS, MICRO_BATCHES, STEPS = 2, 4, 8
SLEEP_S = 0.04
"""A block's, forward, and twice in its backward pass."""
MODEL = DiTConfig(layers=4, width=48, heads=4, ffn=96, channels=4, text_width=16, text_tokens=8, time_features=32)
CHUNKS, FRAMES_PER_CHUNK, WINDOW, LATENT_SIZE = 2, 2, 4, (8, 8)
PAGE, PICTURE = (RESULTS.parents[1] / "docs" / path for path in ("training.md", "pictures/pipelines.png"))
NAMES: dict[Schedule, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zero-bubble": "zero-bubble",
    "zbv": "ZB-V",
}
Kind = Literal["F", "B", "I", "W"]
"""A forward pass; a backward pass, or its two halves: gradients of what came in, and of weights."""


class Action(NamedTuple):
    kind: Kind
    part: int
    """Of the model."""
    micro_batch: int
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


Timeline = list[list[Action]]
"""Of each rank, in order."""


class PacedInput(torch.autograd.Function):
    """A block's input as it is, after a while; and so its gradient."""

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


class Recorder:
    """Reads the clock around what stages are asked to do."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        for method, kind_of in (
            ("forward_one_chunk", lambda given: "F"),
            ("backward_one_chunk", lambda given: "B" if given.get("full_backward", True) else "I"),
            ("backward_weight_one_chunk", lambda given: "W"),
        ):
            setattr(PipelineStage, method, self._around(getattr(PipelineStage, method), kind_of))

    def _around(self, method: Callable[..., Any], kind_of: Callable[[dict[str, Any]], Kind]) -> Callable[..., Any]:
        def recorded(stage: PipelineStage, micro_batch: int, *args: Any, **given: Any) -> Any:
            begun = time.perf_counter()
            answer = method(stage, micro_batch, *args, **given)
            self.actions.append(Action(kind_of(given), stage.stage_index, micro_batch, begun, time.perf_counter()))
            return answer

        return recorded


def train(rank: int, schedule: Schedule, steps: int) -> list[list[Action]]:
    """What this rank did in each step."""
    plan, device = ParallelPlan(pp=RANKS, schedule=schedule, micro_batches=MICRO_BATCHES), torch.device("cpu")
    torch.manual_seed(0)
    recorder = Recorder()
    learner = make_learner(
        TrainingTask(
            dit=paced(CausalDiT(MODEL)),
            sequence=ChunkedSequence(diffusion_forced(CHUNKS, FRAMES_PER_CHUNK, WINDOW), MODEL, LATENT_SIZE, device),
            latent_size=LATENT_SIZE,
            loss=mean_square,
            plan=plan,
            groups=create_training_groups(plan, device),
            options=StepOptions(),
        )
    )
    frames = CHUNKS * FRAMES_PER_CHUNK
    noisy, target = torch.randn(2, MICRO_BATCHES, frames, MODEL.channels, *LATENT_SIZE)
    level, text = torch.full((MICRO_BATCHES, frames), 500.0), torch.randn(MICRO_BATCHES, MODEL.text_tokens, MODEL.text_width)
    found = []
    for _ in range(1 + steps):  # the first agrees on shapes
        recorder.actions = []
        learner.learn(FlowRows(noisy, level, text, target))
        found.append(recorder.actions)
    return found[1:]


def recorded_steps(schedule: Schedule, steps: int) -> list[Timeline]:
    by_rank = run_ranks(train, RANKS, schedule, steps, timeout_s=300.0)
    return [list(step) for step in zip(*by_rank, strict=True)]


def mean_square(flow: Tensor, target: Tensor) -> Tensor:
    return (flow - target).square().mean()


def seconds_of(timeline: Timeline) -> float:
    actions = [action for rank in timeline for action in rank]
    return max(action.end_s for action in actions) - min(action.begin_s for action in actions)


def waits(timeline: Timeline) -> float:
    """Share of the time, between the first pass and the last, in which ranks did nothing."""
    busy = sum(action.seconds for rank in timeline for action in rank)
    return 1 - busy / (len(timeline) * seconds_of(timeline))


def replayed(timeline: Timeline, takes: Callable[[Action], float]) -> Timeline:
    """The same order if each pass took so long and began as soon as its rank and what it needs were there."""
    last = max(action.part for rank in timeline for action in rank)
    done, waiting, made = dict[tuple[str, int, int], float](), [list(rank) for rank in timeline], [[] for _ in timeline]
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


def _kind(action: Action) -> str:
    """Both ways of going back leave what the part before waits for."""
    return "B" if action.kind == "I" else action.kind


def _needs(action: Action, last: int) -> list[tuple[str, int, int]]:
    part, micro_batch = action.part, action.micro_batch
    match action.kind:
        case "F":
            return [("F", part - 1, micro_batch)] if part else []
        case "W":
            return [("B", part, micro_batch)]
        case _:
            after = [("B", part + 1, micro_batch)] if part < last else []
            return [("F", part, micro_batch), *after]


def mean_times(timeline: Timeline) -> dict[tuple[Kind, int], float]:
    """Of each kind of pass of each part."""
    found = dict[tuple[Kind, int], list[float]]()
    for action in (action for rank in timeline for action in rank):
        found.setdefault((action.kind, action.part), []).append(action.seconds)
    return {key: fmean(times) for key, times in found.items()}


def measure(schedule: Schedule) -> dict[str, Any]:
    steps = recorded_steps(schedule, STEPS)
    quickest = min(steps, key=seconds_of)
    times = mean_times(quickest)
    again = replayed(quickest, lambda action: times[action.kind, action.part])
    parts = ParallelPlan(pp=RANKS, schedule=schedule, micro_batches=MICRO_BATCHES).parts_per_rank
    begun = min(rank[0].begin_s for rank in quickest)
    return {
        "schedule": schedule,
        "formula": round(bubble(TRAINED[schedule], RANKS, MICRO_BATCHES, chunks=parts), 4),
        "replayed": round(waits(again), 4),
        "measured": round(waits(quickest), 4),
        "step_ms": round(1e3 * seconds_of(quickest), 1),
        "all_steps_ms": [round(1e3 * seconds_of(step), 1) for step in steps],
        "pass_ms": {f"{kind}{part}": round(1e3 * taken, 1) for (kind, part), taken in sorted(times.items())},
        "actions": [
            [[a.kind, a.part, a.micro_batch, round(1e3 * (a.begin_s - begun), 2), round(1e3 * a.seconds, 2)] for a in rank]
            for rank in quickest
        ],
    }


def table(report: Mapping[str, Any]) -> Iterator[str]:
    yield row(("schedule", "formula", "replayed", "measured", "a step"))
    yield row(["---"] * 5)
    for each in report["measured"]["rows"]:
        shares = (f"{each[name]:.1%}" for name in ("formula", "replayed", "measured"))
        yield row((NAMES[each["schedule"]], *shares, f"{each['step_ms']:.0f} ms"))
    yield ""
    about = f"{RANKS} ranks, {MICRO_BATCHES} micro-batches, {MODEL.layers} blocks that sleep {1e3 * SLEEP_S:.0f} ms three times"
    yield f"{about}; torch {report['versions']['torch']}, commit `{report['commit']}`."


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colours: dict[str, tuple[str, str]] = {
        "F": ("#2a6f97", "#61a5c2"),
        "B": ("#e07a5f", "#f2a48f"),
        "I": ("#e9a23b", "#f4c98a"),
        "W": ("#588157", "#a3b18a"),
    }
    longest = max(each["step_ms"] for each in rows)
    figure = Figure(figsize=(10, 1.35 * len(rows) + 0.9), layout="constrained")
    every = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for axes, each in zip(every, rows, strict=True):
        for rank, actions in enumerate(each["actions"]):
            for kind, part, micro_batch, begin, length in actions:
                axes.barh(-rank, length, left=begin, height=0.84, color=colours[kind][part // RANKS], edgecolor="white", lw=0.5)
                if length > 0.005 * longest:  # the first part has no inputs to give gradients for
                    axes.text(begin + length / 2, -rank, micro_batch, ha="center", va="center", fontsize=7, color="white")
        said = f"waits {each['measured']:.0%}, by the formula {each['formula']:.0%}"
        axes.set_title(f"{NAMES[each['schedule']]}: {said}", fontsize=9, loc="left")
        axes.set_yticks([-rank for rank in range(RANKS)], [f"rank {rank}" for rank in range(RANKS)], fontsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    every[-1].set_xlabel("milliseconds")
    said = {"F": "forward", "B": "backward", "I": "backward: inputs", "W": "backward: weights"}
    handles = [Patch(color=colours[kind][0], label=said[kind]) for kind in get_args(Kind)]
    handles.append(Patch(color="#bbbbbb", label="lighter: a rank's second part"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="draw the last result and write it into docs/training.md")
    if not parser.parse_args().page:
        load = os.getloadavg()[0]
        about = {"ranks": RANKS, "micro_batches": MICRO_BATCHES, "steps": STEPS, "layers": MODEL.layers, "width": MODEL.width}
        found = [measure(schedule) for schedule in get_args(Schedule)]
        write_report(
            "pipeline_timelines", about | {"sleep_ms_per_block": 1e3 * SLEEP_S, "load_before": round(load, 2)}, {"rows": found}
        )
    report = json.loads((RESULTS / "pipeline_timelines.json").read_text())
    draw(PICTURE, report["measured"]["rows"])
    write_between(PAGE, "benchmarks.pipeline_timelines", table(report))


if __name__ == "__main__":
    main()
