"""The quiz: asks, grades by the computed answers, and says why."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from course.question import Question
from course.questions import all_questions
from course.reader import number_in
from millstream.core.errors import CourseError


def choose(count: int, *, topic: str | None, seed: int) -> list[Question]:
    """So many questions in an order of the seed."""
    questions = all_questions()
    topics = sorted({each.topic for each in questions})
    if topic is not None and topic not in topics:
        raise CourseError(f"there is no topic {topic!r}; there are {', '.join(topics)}")
    if count < 1:
        raise CourseError(f"--count must be 1 or more, got {count}")
    found = [each for each in questions if topic in (None, each.topic)]
    return random.Random(seed).sample(found, min(count, len(found)))


def play(
    questions: Sequence[Question], ask: Callable[[str], str], show: Callable[[str], None]
) -> dict[str, bool]:
    """Which were right, by their text. Whoever ends the input leaves the rest."""
    found = dict[str, bool]()
    for number, question in enumerate(questions, start=1):
        show(f"{number}/{len(questions)} [{question.topic}] {question.text}")
        try:
            guess = number_in(ask("  your number: "))
        except EOFError:
            show("")
            break
        if guess is None:
            show("  that is no number, which counts as not known")
        found[question.text] = guess is not None and question.is_right(guess)
        show(
            f"  {'right' if found[question.text] else 'not yet'}: {question.answer:.4g} {question.unit}. "
            f"{question.why}"
        )
    show(f"{sum(found.values())} of {len(found)} right")
    return found
