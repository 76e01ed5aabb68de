"""The planner's bubbles against the orders that torch's schedules follow, played with equally long passes."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from course.chapters.pipeline_parallel.timelines import (
    UNITS,
    PassKind,
    PipelinePass,
    RankPasses,
    replayed,
    waits,
)
from millstream.planner.bubbles import TRAINED, bubble, held_micro_batches
from millstream.train.parallel.plan import ParallelPlan, Schedule
from millstream.train.parallel.stages import SCHEDULES, part_numbers

KINDS: dict[str, PassKind] = {
    "FORWARD": "F",
    "FULL_BACKWARD": "B",
    "BACKWARD_INPUT": "I",
    "BACKWARD_WEIGHT": "W",
}


def torchs_order(schedule: Schedule, ranks: int, micro_batches: int) -> RankPasses:
    """Return the passes of all ranks in torch's schedule with two parts a rank, which every rank knows."""
    plan = ParallelPlan(pp=ranks, schedule=schedule, micro_batches=micro_batches)
    parts: list[Any] = [
        SimpleNamespace(
            stage_index=number,
            num_stages=2 * ranks,
            group_size=ranks,
            group_rank=0,
            is_first=number == 0,
            is_last=number == 2 * ranks - 1,
            submod=nn.Identity(),
        )
        for number in part_numbers(plan, 0)
    ]
    made: PipelineScheduleMulti = SCHEDULES[schedule](parts, micro_batches, loss_fn=lambda *_: None)
    return [
        [
            PipelinePass(
                KINDS[action.computation_type.name],
                action.stage_index,
                action.microbatch_index or 0,
                0.0,
                0.0,
            )
            for action in actions
            if action is not None
        ]
        for actions in made.pipeline_order.values()
    ]


def plain_order(ranks: int, micro_batches: int, *, at_once: int) -> RankPasses:
    """Forward passes, of which so many are under way at most before one goes back."""
    timeline = []
    for rank in range(ranks):
        first = min(micro_batches, max(1, at_once - rank))
        steps: list[tuple[PassKind, int]] = [("F", number) for number in range(first)]
        for number in range(micro_batches):
            steps.append(("B", number))
            if first + number < micro_batches:
                steps.append(("F", first + number))
        timeline.append([PipelinePass(kind, rank, number, 0.0, 0.0) for kind, number in steps])
    return timeline


def order_of(schedule: Schedule, ranks: int, micro_batches: int) -> RankPasses:
    if schedule in ("gpipe", "1f1b"):
        return plain_order(
            ranks, micro_batches, at_once=ranks if schedule == "1f1b" else micro_batches + ranks
        )
    return torchs_order(schedule, ranks, micro_batches)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (2, 8), (4, 8), (4, 16), (8, 16)])
@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_an_order_with_equally_long_passes_waits_and_holds_as_the_formulas_say(
    schedule: Schedule, ranks: int, micro_batches: int
) -> None:
    order = order_of(schedule, ranks, micro_batches)
    chunks = 1 if schedule in ("gpipe", "1f1b") else 2
    played = replayed(order, lambda action: UNITS[action.kind])
    expected = bubble(TRAINED[schedule], ranks, micro_batches, chunks=chunks)
    assert waits(played) == pytest.approx(expected)
    held = max(most_held(actions) for actions in order) / chunks
    assert held == held_micro_batches(TRAINED[schedule], ranks, micro_batches, chunks=chunks)


def most_held(actions: list[PipelinePass]) -> int:
    """Micro-batches whose activations a rank keeps, part by part, at its fullest moment."""
    held = 0
    most = 0
    for action in actions:
        held += {"F": 1, "B": -1, "I": 0, "W": -1}[action.kind]
        most = max(most, held)
    return most


def test_nothing_is_played_before_what_it_needs() -> None:
    played = replayed(torchs_order("zbv", 4, 8), lambda action: UNITS[action.kind])
    ends = {(a.kind, a.part, a.micro_batch): a.end_s for rank in played for a in rank}
    for action in (action for rank in played for action in rank):
        if action.kind == "F" and action.part:
            assert action.begin_s >= ends["F", action.part - 1, action.micro_batch]
        if action.kind == "I" and action.part < 7:
            assert action.begin_s >= ends["I", action.part + 1, action.micro_batch]
    for rank in played:
        assert all(after.begin_s >= before.end_s for before, after in pairwise(rank))
