"""A list of measured numbers in five: how many, the usual, the bad, the worst."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Percentiles by nearest rank: each is a value that was measured."""

    count: int
    p50: float
    p95: float
    p99: float
    largest: float


def summarise(values: Sequence[float]) -> Summary | None:
    """None when nothing was measured."""
    if not values:
        return None
    ordered = sorted(values)
    return Summary(
        count=len(ordered),
        p50=percentile(ordered, 0.50),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        largest=ordered[-1],
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    assert ordered, "no values, no percentile"
    assert 0 < share <= 1, f"a share is above 0 and at most 1, got {share}"
    return ordered[math.ceil(share * len(ordered)) - 1]
