"""How a paper's questions are put: all of one shape, so that three fit on a screen."""

from __future__ import annotations

from millstream.course.question import Question
from millstream.planner.hardware import Link


def asked(paper: str, text: str, answer: float, unit: str, why: str) -> Question:
    return Question(topic=paper, text=text, answer=answer, unit=unit, why=why)


def rates_of(link: Link) -> str:
    """As a question states them."""
    return f"alpha {link.alpha_us:g} us, beta {link.beta_gb_s:g} GB/s"
