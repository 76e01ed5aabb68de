"""Chapter 8, solution."""

from __future__ import annotations

from collections.abc import Sequence


def done_turn_by_turn(lengths: Sequence[int], places: int) -> list[int]:
    free_after = [0] * places
    done = list[int]()
    for length in lengths:
        place = free_after.index(min(free_after))
        free_after[place] += length
        done.append(free_after[place])
    return done


def letters_a_second(lengths: Sequence[int], places: int, turn_ms: float) -> float:
    return sum(lengths) / (max(done_turn_by_turn(lengths, places)) * turn_ms / 1e3)
