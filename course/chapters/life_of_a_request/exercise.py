"""Chapter 8, exercises. Fill in the functions, then run `millstream course check 8`."""

from __future__ import annotations

from collections.abc import Sequence


def done_turn_by_turn(lengths: Sequence[int], places: int) -> list[int]:
    """The turn, counted from 1, in which each request gets its last letter.

    Requests come in in order, as soon as a place is free; everybody who is in gets a letter a turn. A place
    whose request gets its last letter in a turn is free in the next.
    """
    raise NotImplementedError("done_turn_by_turn")


def letters_a_second(lengths: Sequence[int], places: int, turn_ms: float) -> float:
    """All letters over all time, if a turn takes `turn_ms`, however many are in."""
    raise NotImplementedError("letters_a_second")
