"""1F1B waits as long as GPipe. What it saves is memory: a stage holds activations of fewer micro-batches at a
time."""

from __future__ import annotations

from collections.abc import Sequence

from course.chapters.pipeline_parallel.timelines import RANKS, PipelinePass, recorded_steps
from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.planner.bubbles import TRAINED, bubble, held_micro_batches
from millstream.train.parallel.plan import Schedule

COMPARED: tuple[Schedule, ...] = ("gpipe", "1f1b")


def run(reader: Reader, parts: int = 6) -> None:
    if not RANKS <= parts <= 9:
        raise CourseError(f"--parts must be {RANKS} to 9 micro-batches, got {parts}")
    guess = reader.predict(
        f"GPipe, {RANKS} stages, {parts} micro-batches. Of how many does the first stage hold activations at most?"
    )
    for schedule in COMPARED:
        (timeline,) = recorded_steps(schedule, 1, parts)
        held = max(most_held(rank) for rank in timeline)
        assert held == held_micro_batches(TRAINED[schedule], RANKS, parts), f"{schedule} held {held}"
        if schedule == "gpipe":
            reader.reveal(
                guess, held, by="counted in the order that ran, and planner.bubbles.held_micro_batches"
            )
        waiting = bubble(TRAINED[schedule], RANKS, parts)
        reader.say(
            f"{schedule:6} held activations of {held} micro-batches on its fullest stage, and waits "
            f"{waiting:.1%}"
        )
    reader.say("so more micro-batches cost no memory with 1F1B, and these shrink the bubble")


def most_held(passes: Sequence[PipelinePass]) -> int:
    """Micro-batches that have gone forward and not yet back, at most."""
    held = most = 0
    for each in passes:
        held += {"F": 1, "B": -1}[each.kind]
        most = max(most, held)
    assert held == 0, "all that went forward came back"
    return most
