"""One question of the quiz."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    topic: str
    text: str
    answer: float
    unit: str
    why: str
    tolerance: float = 0.05
    """A share of the answer."""

    def is_right(self, guess: float) -> bool:
        return abs(guess - self.answer) <= self.tolerance * abs(self.answer) + 1e-9
