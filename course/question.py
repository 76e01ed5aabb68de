"""One question of the quiz, and how a paper's are put: all of one shape, so that three fit on a screen."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.planner.hardware import Link


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


def asked(paper: str, text: str, answer: float, unit: str, why: str) -> Question:
    return Question(topic=paper, text=text, answer=answer, unit=unit, why=why)


def rates_of(link: Link) -> str:
    """As a question states them."""
    return f"alpha {link.alpha_us:g} us, beta {link.beta_gb_s:g} GB/s"
