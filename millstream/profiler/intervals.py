"""Sets of moments: unions, differences and lengths of many intervals at once.

Sums of durations are not wall time; these are. An interval set is two float64 arrays, begins and ends, sorted and disjoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
        """How much of each of these other intervals lies in the set."""
        return self._upto(end) - self._upto(begin)

    def clipped(self, begin: float, end: float) -> Intervals:
        kept = (self.end > begin) & (self.begin < end)
        return Intervals(np.clip(self.begin[kept], begin, end), np.clip(self.end[kept], begin, end))

    def __or__(self, other: Intervals) -> Intervals:
        return union(np.concatenate([self.begin, other.begin]), np.concatenate([self.end, other.end]))

    def __sub__(self, other: Intervals) -> Intervals:
        return self & other.gaps(*self._hull(other))

    def __and__(self, other: Intervals) -> Intervals:
        """By sweeping both: a moment is in when two intervals are open."""
        times = np.concatenate([self.begin, other.begin, self.end, other.end])
        steps = np.repeat([1, -1], [len(self) + len(other), len(self) + len(other)])
        order = np.lexsort((steps, times))  # at one moment, what ends goes first
        open_after = np.cumsum(steps[order])
        at = np.flatnonzero(open_after[:-1] == 2)
        begin, end = times[order][at], times[order][at + 1]
        kept = end > begin
        return union(begin[kept], end[kept])

    def gaps(self, begin: float, end: float) -> Intervals:
        """What is left of a stretch."""
        inside = self.clipped(begin, end)
        begins, ends = np.concatenate([[begin], inside.end]), np.concatenate([inside.begin, [end]])
        kept = ends > begins
        return Intervals(begins[kept], ends[kept])

    def _hull(self, other: Intervals) -> tuple[float, float]:
        everything = np.concatenate([self.begin, self.end, other.begin, other.end, [0.0]])
        return float(everything.min()), float(everything.max())

    def _upto(self, moments: Floats) -> Floats:
        """Length of the set before each moment."""
        if not len(self):
            return np.zeros_like(moments)
        before = np.concatenate([[0.0], np.cumsum(self.end - self.begin)])
        index = np.searchsorted(self.begin, moments, side="right")
        cut = np.clip(self.end[np.maximum(index - 1, 0)] - moments, 0.0, None)
        reached: Floats = before[index] - np.where(index > 0, cut, 0.0)
        return reached


EMPTY = Intervals(np.empty(0), np.empty(0))


def union(begin: Floats, end: Floats) -> Intervals:
    """Any intervals, in any order, overlapping as they like."""
    if not len(begin):
        return EMPTY
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], begin[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(begin[first], reach[last])
