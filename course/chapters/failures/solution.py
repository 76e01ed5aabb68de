"""The failure lab, solution."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from statistics import median


def first_difference(records: Sequence[Sequence[str]]) -> int | None:
    return next((place for place, calls in enumerate(zip_longest(*records)) if len(set(calls)) > 1), None)


def slow_rank(own_s: Sequence[float], step_s: Sequence[float], *, times: float = 1.5) -> int | None:
    slowest = max(range(len(own_s)), key=lambda rank: own_s[rank])
    return slowest if own_s[slowest] >= times * median(own_s) else None


def fits(holes: Sequence[int], asked: int, page: int | None) -> bool:
    if page is None:
        return max(holes, default=0) >= asked
    return sum(hole // page for hole in holes) >= -(-asked // page)
