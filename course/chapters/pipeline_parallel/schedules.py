"""Four schedules, run for real on two ranks. The order in which passes ran is drawn; how long ranks waited is
measured."""

from __future__ import annotations

from course.chapters.pipeline_parallel.drawing import LEGEND, drawn_lines
from course.chapters.pipeline_parallel.timelines import (
    MICRO_BATCHES,
    RANKS,
    UNITS,
    recorded_steps,
    replayed,
    seconds_of,
    waits,
)
from course.reader import Reader
from millstream.planner.bubbles import TRAINED, bubble
from millstream.train.parallel.plan import ParallelPlan, Schedule

SHOWN: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def run(reader: Reader, steps: int = 2) -> None:
    guess = reader.predict(
        f"1F1B, {RANKS} stages, {MICRO_BATCHES} micro-batches. What share of the time does a stage wait, in %?"
    )
    reader.reveal(
        guess,
        100 * bubble("1f1b", RANKS, MICRO_BATCHES),
        by="(p-1) / (m+p-1), the same as GPipe",
        tolerance=0.05,
    )
    reader.say(LEGEND)
    for schedule in SHOWN:
        timeline = min(recorded_steps(schedule, steps), key=seconds_of)
        parts = ParallelPlan(pp=RANKS, schedule=schedule, micro_batches=MICRO_BATCHES).parts_per_rank
        expected = bubble(TRAINED[schedule], RANKS, MICRO_BATCHES, chunks=parts)
        in_units = replayed(timeline, lambda each: UNITS[each.kind])
        assert abs(waits(in_units) - expected) < 1e-9, (
            f"{schedule}: the order waits {waits(in_units)}, by the formula {expected}"
        )
        reader.say(f"{schedule}: waits {expected:.1%} by the formula, and so does the order that ran")
        for line in drawn_lines(in_units):
            reader.say(f"  {line}")
        reader.measured(f"  measured, with messages and Python: {waits(timeline):.1%}")
        assert waits(timeline) < expected + 0.3, (
            f"{schedule} waited {waits(timeline):.0%}: this machine is too busy, try again"
        )
