"""Two ranks that both send first wait for each other for ever. This makes it happen and finds the two
lines."""

from __future__ import annotations

from course.chapters.point_to_point.swaps import SWAPS, swapped
from course.reader import Reader
from millstream.core.errors import CourseError, RanksStuck
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, cure: str = "none", numbers: int = 1000, patience: float = 5.0) -> None:
    if cure not in SWAPS:
        raise CourseError(f"--cure must be {', '.join(SWAPS)}, got {cure!r}")
    if cure == "none":
        _look_at_the_hang(reader, numbers, patience)
        return
    answers = on_ranks(swapped, 2, cure, numbers)
    assert answers == [1.0, 0.0], f"after a swap the ranks hold {answers}"
    reader.say(f"with the cure {cure!r} rank 0 holds {answers[0]:g} and rank 1 holds {answers[1]:g}: swapped")


def _look_at_the_hang(reader: Reader, numbers: int, patience: float) -> None:
    try:
        on_ranks(swapped, 2, "none", numbers, timeout_s=patience)
    except RanksStuck as error:
        waiting = error.waiting
    else:
        raise AssertionError("both sent first, and nobody waited")
    reader.say(
        f"symptom: nothing is printed, nothing is computed; after {patience:g} s we looked where each rank "
        "stands"
    )
    for rank, where in sorted(waiting.items()):
        assert "both_send_first" in where, f"rank {rank} waits at {where}"
        reader.say(f"  rank {rank} waits at {where}")
    reader.say("both are in the same line, a send: each waits until the other receives")
