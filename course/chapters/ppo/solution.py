"""Chapter 12, solution."""

from __future__ import annotations

from collections.abc import Sequence


def gae(rewards: Sequence[float], values: Sequence[float], discount: float, trace: float) -> list[float]:
    found = list[float]()
    later = 0.0
    value_after = 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        later = reward + discount * value_after - value + discount * trace * later
        value_after = value
        found.append(later)
    return found[::-1]


def clipped_objective(ratio: float, advantage: float, clip: float) -> float:
    return min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)
