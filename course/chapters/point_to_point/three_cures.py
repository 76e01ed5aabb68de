"""The swap that hung, three times without hanging."""

from __future__ import annotations

from course.chapters.point_to_point.swaps import CURES, swapped
from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, numbers: int = 1000) -> None:
    for cure, swap in CURES.items():
        answers = on_ranks(swapped, 2, cure, numbers)
        assert answers == [1.0, 0.0], f"{cure}: the ranks hold {answers}"
        reader.say(
            f"{swap.__name__.replace('_', ' '):25} rank 0 holds {answers[0]:g}, rank 1 holds {answers[1]:g}"
        )
