"""What keeps an optimisation honest: how strongly a model is held to its reference, and when reward and judge part.

Knows no models: numbers in, decisions out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FACTOR = 1.5
"""By which the coefficient follows, and how far off the target it lets things be."""
LEAST, MOST = 1e-6, 1e3


@dataclass(slots=True)
class DivergenceControl:
    """An adaptive coefficient. With a target of 0 nothing holds the model: an example of what then happens."""

    coefficient: float
    target: float
    """Nats of a chunk's learnt steps together, from the reference."""
    bound: float
    """Beyond it the reward counts for nothing and the model only goes back."""

    def follow(self, measured: float) -> None:
        if self.target <= 0:
            return
        if measured > FACTOR * self.target:
            self.coefficient = min(MOST, self.coefficient * FACTOR)
        elif measured < self.target / FACTOR:
            self.coefficient = max(LEAST, self.coefficient / FACTOR)

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
