"""Control of how strongly a model is held to its reference, and of when reward and judge have parted.

Knows no models: numbers in, decisions out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

FACTOR = 1.5
"""Largest factor by which the coefficient changes in a step."""
MOST = 1e3


@dataclass(slots=True)
class DivergenceControl:
    """Adaptive coefficient of the divergence. With a target of 0 nothing holds the model, as an example of
    what then happens."""

    coefficient: float
    target: float
    """Target divergence from the reference, in nats of a chunk's steps together."""
    bound: float
    """Divergence above which the reward counts for nothing and the model only goes back."""
    least: float = field(init=False)
    """Lower bound of the coefficient, its initial value: if it fell while a model is still near its
    reference, it would be too low when the model no longer is."""

    def __post_init__(self) -> None:
        self.least = self.coefficient

    def adjust(self, measured: float) -> None:
        """Scale the coefficient by measured / target, but by no more than `FACTOR` either way."""
        if self.target > 0:
            by = min(FACTOR, max(1 / FACTOR, measured / self.target))
            self.coefficient = min(MOST, max(self.least, self.coefficient * by))

    def share(self, measured: float) -> float:
        """Return the share of its distance from the reference that a model keeps: divergence grows with the
        square of that distance."""
        return math.sqrt(self.target / measured) if 0 < self.target < measured else 1.0

    def is_beyond(self, measured: float) -> bool:
        return self.target > 0 and measured > self.bound


class Evaluated(NamedTuple):
    """Result of evaluating one model, by the reward that it learns from and by the judge that it never
    sees."""

    step: int
    reward: float
    judge: float


def have_parted(found: Sequence[Evaluated], *, tolerance: float, patience: int) -> bool:
    """Return whether, in each of the last `patience` evaluations, the reward was above and the judge more
    than `tolerance` below what they were when the judge liked the model best."""
    if len(found) <= patience:
        return False
    best = best_by_judge(found)
    return all(
        each.reward > best.reward and each.judge < best.judge - tolerance for each in found[-patience:]
    )


def best_by_judge(found: Sequence[Evaluated]) -> Evaluated:
    """Return the evaluation that the judge liked best; the earliest of several."""
    return max(found, key=lambda each: (each.judge, -each.step))
