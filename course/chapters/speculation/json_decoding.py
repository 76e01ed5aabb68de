"""Letters that would break the form are forbidden before one is drawn: every answer is then a record, right
or wrong."""

from __future__ import annotations

import json
import string

import torch

from course.confidence import of_share
from course.reader import Reader
from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyLM
from course.tinylm.speculation import draw
from course.tinylm.text import END, LETTERS, decode, encode, make_text
from course.tinylm.training import trained
from millstream.core.errors import CourseError

DIGIT = "123456789"
WORD = string.ascii_lowercase
LONGEST_WORD = 9
FORM = ('{"count": ', DIGIT, ', "colour": "', WORD, '", "thing": "', WORD, '"}\n')
"""Fixed text, and between it a digit or a word."""


def allowed(written: str) -> str:
    """Letters that may come next, so that a record of this form can still be finished."""
    for part in FORM:
        if part == WORD:
            length = next((place for place, letter in enumerate(written) if letter not in WORD), len(written))
            if length == len(written):
                return (WORD if length < LONGEST_WORD else "") + ('"' if length else "")
            written = written[length:]
        elif part == DIGIT:
            if not written:
                return DIGIT
            written = written[1:]
        elif len(written) < len(part):
            assert part.startswith(written), f"{written!r} is not of the form"
            return part[len(written)]
        else:
            written = written.removeprefix(part)
    raise AssertionError("the record is over")


def run(reader: Reader, records: int = 40, temperature: float = 1.5) -> None:
    if not (10 <= records <= 500 and 0.1 <= temperature <= 5):
        raise CourseError(
            f"--records must be 10 to 500 and --temperature 0.1 to 5, got {records} and {temperature:g}"
        )
    guess = reader.predict(f"after '{FORM[0]}' how many of the {len(LETTERS)} letters are allowed?")
    reader.reveal(guess, len(allowed(FORM[0])), by="the form wants a digit from 1 to 9")
    lm = trained()
    lines = make_text(records, seed=7).strip("\n").split("\n")
    for name, is_held in (("free", False), ("held to the form", True)):
        written = [
            write_record(lm, line[: line.index("{")], temperature, is_held, seed)
            for seed, line in enumerate(lines)
        ]
        valid = sum(map(is_record, written))
        right = sum(
            text.strip() == line[line.index("{") :] for text, line in zip(written, lines, strict=True)
        )
        low, high = of_share(valid, records)
        reader.measured(
            f"{name:17} {valid / records:4.0%} are records, 95% in {low:.0%} to {high:.0%}; "
            f"{right / records:4.0%} are true"
        )
        assert valid == records or not is_held, "a record that is not one"
        reader.measured(f"{'':17} for example “{written[0].strip()}”")
    reader.say("the form is certain, the truth is not: forbidding letters teaches the model nothing")


def is_record(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and list(found) == ["count", "colour", "thing"]
        and isinstance(found["count"], int)
    )


@torch.no_grad()
def write_record(
    lm: TinyLM, sentence: str, temperature: float, is_held: bool, seed: int, most: int = 70
) -> str:
    made = torch.Generator().manual_seed(seed)
    cache = PagedCache(lm.config, pages=16)
    text = CachedText()
    read = encode("\n" + sentence)
    written = list[int]()
    while len(written) < most and written[-1:] != [END]:
        logits = lm(torch.tensor([read]), cache.grow([text], len(read)))[0, -1] / temperature
        if is_held:
            may = torch.tensor(encode(allowed(decode(written))))
            logits = torch.full_like(logits, -torch.inf).index_copy(0, may, logits[may])
        written.append(draw(logits.softmax(-1), made))
        read = written[-1:]
    return decode(written)
