"""What is recorded of a schedule is what it did: every pass once, and in an order that waits as the formula
says."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import get_args

import pytest

from course.chapters.pipeline_parallel.timelines import (
    MICRO_BATCHES,
    RANKS,
    SLEEP_S,
    UNITS,
    recorded_steps,
    replayed,
    seconds_of,
    waits,
)
from millstream.planner.bubbles import TRAINED, bubble
from millstream.train.parallel.plan import TWO_PARTS, Schedule


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_every_pass_is_recorded_once_and_their_order_waits_as_the_formula_says(schedule: Schedule) -> None:
    (timeline,) = recorded_steps(schedule, 1)
    chunks = 2 if schedule in TWO_PARTS else 1
    passes = Counter((action.kind, action.part) for rank in timeline for action in rank)
    kinds = "FIW" if schedule in ("zero-bubble", "zbv") else "FB"
    assert passes == {(kind, part): MICRO_BATCHES for kind in kinds for part in range(RANKS * chunks)}
    played = replayed(timeline, lambda action: UNITS[action.kind])
    assert waits(played) == pytest.approx(bubble(TRAINED[schedule], RANKS, MICRO_BATCHES, chunks=chunks))
    for rank in timeline:
        assert all(action.seconds >= 0 for action in rank)
        assert all(after.begin_s >= before.end_s for before, after in pairwise(rank))
    assert seconds_of(timeline) > SLEEP_S * MICRO_BATCHES
