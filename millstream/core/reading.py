"""A prompt's text as a model reads it, word by word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PromptReading(NamedTuple):
    text: str
    """The text in the words that the model was taught; as it was written, where no word was exchanged."""
    unknown: tuple[str, ...] = ()
    """Words that mean nothing to the model and are left out, each once."""
    understood: tuple[tuple[str, str], ...] = ()
    """Words or phrases that the model was not taught, each once with what it reads in their place."""


def combined(readings: Iterable[PromptReading]) -> PromptReading:
    """Return the readings of several texts as one, with each word once."""
    several = tuple(readings)
    return PromptReading(
        text=" ".join(each.text for each in several),
        unknown=tuple(dict.fromkeys(word for each in several for word in each.unknown)),
        understood=tuple(dict.fromkeys(pair for each in several for pair in each.understood)),
    )
