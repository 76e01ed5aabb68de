"""What keeps an optimisation honest: how strongly a model is held to its reference, and when reward and judge part.

Knows no models: numbers in, decisions out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

FACTOR = 1.5
"""The most by which the coefficient changes in a step."""
MOST = 1e3


@dataclass(slots=True)
class DivergenceControl:
    """An adaptive coefficient. With a target of 0 nothing holds the model: an example of what then happens."""

    coefficient: float
    target: float
    """Nats of a chunk's steps together, from the reference."""
    bound: float
    """Beyond it the reward counts for nothing and the model only goes back."""
    least: float = field(init=False)
    """What it begins with: if it fell while a model is still near its reference, it would be too late when it no longer is."""

    def __post_init__(self) -> None:
        self.least = self.coefficient

    def follow(self, measured: float) -> None:
        """By as much as the target is passed, or kept, but no more than `FACTOR`."""
        if self.target > 0:
            by = min(FACTOR, max(1 / FACTOR, measured / self.target))
            self.coefficient = min(MOST, max(self.least, self.coefficient * by))

    def share(self, measured: float) -> float:
        """Of what a model has moved by, how much it keeps: divergence grows with the square of that."""
        return math.sqrt(self.target / measured) if 0 < self.target < measured else 1.0

    def is_beyond(self, measured: float) -> bool:
        return self.target > 0 and measured > self.bound


class Evaluated(NamedTuple):
    """What was found of one model, by the reward that it learns from and by the judge that it never sees."""

    step: int
    reward: float
    judge: float


def have_parted(found: Sequence[Evaluated], *, tolerance: float, patience: int) -> bool:
    """Whether, so many evaluations in a row, the reward was above and the judge more than `tolerance` below what they were when
    the judge liked the model best."""
    if len(found) <= patience:
        return False
    best = best_by_judge(found)
    return all(each.reward > best.reward and each.judge < best.judge - tolerance for each in found[-patience:])


def best_by_judge(found: Sequence[Evaluated]) -> Evaluated:
    """The earliest of them."""
    return max(found, key=lambda each: (each.judge, -each.step))
