"""English words by the words that Brook was taught: one file, read when a prompt first needs it.

`python -m millstream.train.data.word_table` writes the file. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

PATH = Path(__file__).parent / "words.txt"
MAX_WORDS = 4
"""Most words of a phrase."""
COUNTS = ("two", "three")
"""Targets that the bundled model does not know: their rows are passed over until one does."""


@cache
def word_table() -> Mapping[str, str]:
    """Return the target of each name, a word or a phrase with underscores for blanks; "" where it has no
    content. Reads the file: a few milliseconds, once."""
    return parse_table(PATH.read_text(encoding="utf-8"))


def parse_table(text: str) -> Mapping[str, str]:
    targets: dict[str, str] = {}
    for block in text.split("\n\n"):
        if not block.startswith("#"):
            target, _, names = block.partition(":")
            targets |= dict.fromkeys(names.split(), target)
    return targets
