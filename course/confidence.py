"""How sure a number is that was found by chance: intervals that hold the truth 95 times in 100."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch

Z = 1.96
_T = {
    2: 12.71,
    3: 4.30,
    4: 3.18,
    5: 2.78,
    6: 2.57,
    7: 2.45,
    8: 2.36,
    9: 2.31,
    10: 2.26,
    12: 2.20,
    16: 2.13,
    20: 2.09,
    30: 2.05,
}
"""Student's t by the number of values; between two of them, that of the smaller number is a little too
wide."""


class Interval(NamedTuple):
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


def of_share(hits: int, count: int) -> Interval:
    """Wilson's, of a share of yes among `count` answers."""
    share = hits / count
    spread = Z * Z / count
    middle = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return Interval(middle - half, middle + half)


def of_mean(values: Sequence[float]) -> Interval:
    """Student's, of the mean of independent runs."""
    assert len(values) >= 2, "one run has no spread"
    t = _T[max(count for count in _T if count <= len(values))]
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(statistics.fmean(values) - half, statistics.fmean(values) + half)


def chance_of(observed: Sequence[float], expected: Sequence[float]) -> float:
    """Compute how likely counts as far off as these are, if they were drawn as expected: Pearson's test. Rare
    cells count as one."""
    cells = sorted(zip(expected, observed, strict=True), reverse=True)
    common = [cell for cell in cells if cell[0] >= 5]
    rest = [sum(cell[side] for cell in cells[len(common) :]) for side in (0, 1)]
    if rest[0] >= 5:
        common.append((rest[0], rest[1]))
    elif common:
        common[-1] = (common[-1][0] + rest[0], common[-1][1] + rest[1])
    assert len(common) >= 2, "one cell says nothing"
    far = sum((seen - wanted) ** 2 / wanted for wanted, seen in common)
    halves = torch.tensor([(len(common) - 1) / 2, far / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))
