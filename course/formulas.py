"""The few formulas of the pages as plain HTML: `$2\\frac{n-1}{n}\\frac{b}{\\beta}$` needs no typesetter and
no network."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"(?<![`\\$])\$([^$\n`]+)\$")
_NAMES = {"alpha": "&alpha;", "beta": "&beta;", "lceil": "&lceil;", "rceil": "&rceil;", "log": "log"}


def as_html(text: str) -> str:
    """A page with its formulas replaced, outside of fences."""
    pieces = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(
        piece if piece.startswith("```") else _FORMULA.sub(lambda found: _one(found[1]), piece)
        for piece in pieces
    )


def _one(formula: str) -> str:
    made = re.sub(r"\\frac\{([^}]*)\}\{([^}]*)\}", _fraction, formula)
    made = re.sub(r"\\([a-z]+)", lambda found: _NAMES[found[1]], made)
    made = re.sub(r"_(\w)", r"<sub>\1</sub>", made)
    assert not re.search(r"[\\{}^]", made), f"cannot write {formula!r}"
    return f'<span class="formula">{made}</span>'


def _fraction(found: re.Match[str]) -> str:
    over, under = (f"({each})" if re.search(r"[-+ ]", each) else each for each in found.groups())
    return f" {over}/{under}"
