"""Who waits, in order: one line for a model's sessions on the whole fleet.

Those whose replica died come first. Others come by when they asked and by weight: a session of weight w stands as if it had
asked `PATIENCE_S` / w later. A heavier one so overtakes those who asked shortly before it, and nobody is overtaken for ever:
whoever asks later than that stands behind, whatever the weight. A place in line never changes but by others coming and going.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

PATIENCE_S = 30.0
"""One of weight 1 is overtaken by nobody; one of 0.5 by those of weight 1 who ask up to 30 s after it."""


class LinePlace(NamedTuple):
    """A place in line; the smaller is before the larger."""

    comes_new: bool
    due: float
    session_id: str


def line_place(session_id: str, *, since: float, weight: float, lost: bool) -> LinePlace:
    assert weight > 0, f"{session_id} weighs {weight}"
    return LinePlace(not lost, since + PATIENCE_S / weight, session_id)


class WaitingLine:
    def __init__(self) -> None:
        self._order: list[LinePlace] = []
        self._standings: dict[str, LinePlace] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        return (each.session_id for each in self._order)

    def join(self, place: LinePlace) -> None:
        assert place.session_id not in self._standings, f"{place.session_id} stands in line already"
        self._standings[place.session_id] = place
        insort(self._order, place)

    def leave(self, session_id: str) -> None:
        del self._order[bisect_left(self._order, self._standings.pop(session_id))]

    def before(self, place: LinePlace) -> int:
        """How many stand before this place."""
        return bisect_left(self._order, place)

    @property
    def first(self) -> LinePlace | None:
        return self._order[0] if self._order else None
