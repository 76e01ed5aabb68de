"""The text that the tiny language model learns: lines that a small grammar makes, and their letters as
tokens.

    two red boats drift past the mill. {"count": 2, "colour": "red", "thing": "boats"}

Every choice is uniform, so how surprising a line must be to whoever knows the grammar is known exactly.
"""

from __future__ import annotations

import json
import math
import re
from itertools import product
from random import Random

COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
COLOURS = ("red", "blue", "green", "white", "black", "golden")
THINGS = ("boats", "ducks", "barrels", "leaves", "lanterns", "otters")
VERBS = ("drift", "float", "turn", "race", "gather")
PLACES = (
    "past the mill",
    "under the bridge",
    "by the reeds",
    "near the weir",
    "along the bank",
    "into the pool",
)
CHOICES = (tuple(COUNTS), COLOURS, THINGS, VERBS, PLACES)
LINE = re.compile(" ".join(f"({'|'.join(words)})" for words in CHOICES) + r"\.")

LETTERS = '\n abcdefghijklmnopqrstuvwxyz0123456789.,:{}"'
"""The first begins and ends a line."""
END = 0
_NUMBERS = {letter: number for number, letter in enumerate(LETTERS)}


def encode(text: str) -> list[int]:
    return [_NUMBERS[letter] for letter in text]


def decode(tokens: list[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def write_line(words: tuple[str, ...]) -> str:
    count, colour, thing, verb, place = words
    return f"{count} {colour} {thing} {verb} {place}. {record_of(count, colour, thing)}"


def record_of(count: str, colour: str, thing: str) -> str:
    return json.dumps({"count": COUNTS[count], "colour": colour, "thing": thing})


def make_text(lines: int, seed: int) -> str:
    """Write lines, each with a newline before it; one more ends the last."""
    draw = Random(seed)
    return "".join("\n" + write_line(tuple(map(draw.choice, CHOICES))) for _ in range(lines)) + "\n"


def is_sentence(text: str) -> bool:
    """Return whether the grammar could have written this, up to its first full stop."""
    return LINE.match(text) is not None


def nats_per_letter() -> float:
    """Return the least mean loss that any model can have on this text: for a line, the logarithm of the
    number of possible lines."""
    lines = [write_line(words) for words in product(*CHOICES)]
    return math.log(len(lines)) / (1 + sum(map(len, lines)) / len(lines))
