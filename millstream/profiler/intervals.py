"""Sets of moments: unions, differences and lengths of many intervals at once.

Sums of durations are not wall time; these are. An interval set is two float64 arrays, begins and ends, sorted
and disjoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BLOCK = 1 << 14
"""Number of intervals computed at once, which bounds the memory of intermediate results."""


@dataclass(frozen=True, eq=False)
class Intervals:
    begin: Floats
    end: Floats

    def __post_init__(self) -> None:
        assert len(self.begin) == len(self.end), f"{len(self.begin)} begins and {len(self.end)} ends"

    @property
    def total(self) -> float:
        return float((self.end - self.begin).sum())

    def __len__(self) -> int:
        return len(self.begin)

    def within(self, begin: Floats, end: Floats) -> Floats:
        """Return how much of each of these other intervals lies in the set."""
        return self._upto(end) - self._upto(begin)

    def blocks(self, size: int = BLOCK) -> Iterator[Intervals]:
        """Yield all intervals, `size` at a time; one empty block if there are none."""
        for at in range(0, max(1, len(self)), size):
            yield Intervals(self.begin[at : at + size], self.end[at : at + size])

    def clipped(self, begin: float, end: float) -> Intervals:
        kept = (self.end > begin) & (self.begin < end)
        return Intervals(np.clip(self.begin[kept], begin, end), np.clip(self.end[kept], begin, end))

    def __or__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self if len(self) else other
        return union(np.concatenate([self.begin, other.begin]), np.concatenate([self.end, other.end]))

    def __sub__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self
        return self & other.gaps(float(self.begin[0]), float(self.end[-1]))

    def __and__(self, other: Intervals) -> Intervals:
        """Intersect: each interval of the smaller set is looked up in the larger one."""
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        first = np.searchsorted(many.end, few.begin, side="right")
        meets = np.maximum(np.searchsorted(many.begin, few.end, side="left") - first, 0)
        of = np.repeat(np.arange(len(few)), meets)
        met = np.arange(len(of)) + np.repeat(first - np.cumsum(meets) + meets, meets)
        begin = np.maximum(few.begin[of], many.begin[met])
        end = np.minimum(few.end[of], many.end[met])
        kept = end > begin
        return union(begin[kept], end[kept])

    def gaps(self, begin: float, end: float) -> Intervals:
        """Return the parts of a stretch that the set does not cover."""
        inside = self.clipped(begin, end)
        begins = np.concatenate([[begin], inside.end])
        ends = np.concatenate([inside.begin, [end]])
        kept = ends > begins
        return Intervals(begins[kept], ends[kept])

    def _upto(self, moments: Floats) -> Floats:
        """Return the length of the set before each moment."""
        if not len(self):
            return np.zeros_like(moments)
        before = np.concatenate([[0.0], np.cumsum(self.end - self.begin)])
        index = np.searchsorted(self.begin, moments, side="right")
        cut = np.clip(self.end[np.maximum(index - 1, 0)] - moments, 0.0, None)
        reached: Floats = before[index] - np.where(index > 0, cut, 0.0)
        return reached


EMPTY = Intervals(np.empty(0), np.empty(0))


def union(begin: Floats, end: Floats) -> Intervals:
    """Return the union of intervals in any order, overlapping or not."""
    if not len(begin):
        return EMPTY
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    reach = np.maximum.accumulate(end[order])
    first = np.concatenate([[True], begin[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(begin[first], reach[last])
