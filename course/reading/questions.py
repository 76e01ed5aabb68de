"""All questions of the reading map, and those of one paper."""

from __future__ import annotations

from collections.abc import Iterator

from course.question import Question
from course.reading import architecture, communication, execution, memory, profiling
from course.reading.catalogue import Paper

_LAYERS = (architecture, memory, communication, execution, profiling)


def reading_questions() -> Iterator[Question]:
    for layer in _LAYERS:
        yield from layer.questions()


def questions_of(paper: Paper) -> list[Question]:
    return [question for question in reading_questions() if question.topic == paper.name]
