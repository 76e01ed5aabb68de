"""The reader of a script: what is said to them, what they predict, and how near they were.

A script says lines that are the same on every machine (`say`) and lines that were measured (`measured`). Both
are kept, because they are what the chapter's page shows. Predictions are typed before the answer is known, or
given as numbers in advance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+(\.\d*)?")


class SaidLine(NamedTuple):
    text: str
    is_measured: bool


class Graded(NamedTuple):
    """A prediction, and what came out."""

    question: str
    guess: float
    answer: float
    is_right: bool


class Reader:
    def __init__(
        self,
        predictions: Iterable[float] = (),
        *,
        ask: Callable[[str], str] | None = None,
        show: Callable[[str], None] = print,
    ) -> None:
        """Make a reader. `ask` asks a question and returns the answer; None if there is no one to ask."""
        self.lines: list[SaidLine] = []
        self.graded: list[Graded] = []
        self._given = iter(predictions)
        self._ask = ask
        self._show = show
        self._question = ""

    def say(self, text: str = "") -> None:
        self._put(text, is_measured=False)

    def measured(self, text: str) -> None:
        """Print a line with values that differ from one run to the next."""
        self._put(text, is_measured=True)

    def predict(self, question: str) -> float | None:
        """Return the reader's prediction; None if there is no one to ask."""
        self._question = question
        self._put(f"predict first: {question}", is_measured=False)
        given = next(self._given, None)
        if given is not None or self._ask is None:
            return given
        while (found := number_in(self._ask("  your number: "))) is None:
            self._show("  a prediction is a number, for example 12 or 0.5")
        return found

    def reveal(
        self,
        guess: float | None,
        answer: float,
        *,
        by: str,
        tolerance: float = 0.0,
        is_measured: bool = False,
    ) -> None:
        """`tolerance` is a share of the answer; `by`, where the answer comes from."""
        assert math.isfinite(answer), f"{self._question}: {answer}"
        self._put(f"answer: {answer:.4g} ({by})", is_measured=is_measured)
        if guess is None:
            return
        right = abs(guess - answer) <= tolerance * abs(answer) + 1e-9
        self.graded.append(Graded(self._question, guess, answer, right))
        within = f" (within {tolerance:.0%} counts)" if tolerance else ""
        self._show(f"  you said {guess:g}: {'right' if right else 'not yet'}{within}")

    def _put(self, text: str, *, is_measured: bool) -> None:
        self.lines += [SaidLine(line, is_measured) for line in text.splitlines() or [""]]
        self._show(text)


def number_in(typed: str) -> float | None:
    """None of what is no number. A unit of % may stand behind it; 1,560 is what the pages mean by it, 0,5 is
    a half."""
    text = typed.strip().removesuffix("%").rstrip()
    try:
        found = float(text.replace(",", "" if _THOUSANDS.fullmatch(text) else "."))
    except ValueError:
        return None
    return found if math.isfinite(found) else None
