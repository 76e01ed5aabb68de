"""How a paper's questions are put: all of one shape, so that three fit on a screen."""

from __future__ import annotations

from millstream.course.question import Question


def asked(paper: str, text: str, answer: float, unit: str, why: str) -> Question:
    return Question(topic=paper, text=text, answer=answer, unit=unit, why=why)
