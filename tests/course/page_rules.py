"""What the pages of chapters and papers must have, and where a page and a run disagree.

Lines that are the same everywhere must be so in the page; of measured ones only the numbers may differ and
what stands in “ ”, which a model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from course.chapter import FAILURES, LABS, Chapter
from course.page import SOURCE
from course.reader import SaidLine

SECTIONS = (
    "Objectives",
    "Before you begin",
    "The concept",
    "In our code",
    "Predict first",
    "Scripts",
    "Break it",
    "Exercises",
    "On a GPU",
    "Takeaways",
    "Further reading",
)
LAB_SECTIONS = (
    "Goal",
    "Before you begin",
    "The concept",
    "In our code",
    "Milestones",
    "Before and after",
    "On a GPU",
    "Takeaways",
    "Further reading",
)
FAILURE_SECTIONS = (
    "Objectives",
    "Before you begin",
    "The failures",
    "Exercises",
    "On a GPU",
    "Takeaways",
    "Further reading",
)
PAPER_SECTIONS = ("The problem", "The idea", "What was shown", "In our code", "Look for")
PICTURE = re.compile(r"!\[(?P<alt>[^\]]+)\]\(pictures/(?P<name>\w+)\.svg\)")
_VARIES = re.compile(r"[ ]*-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?|“[^”]*”")


def sections_for(chapter: Chapter) -> tuple[str, ...]:
    """Those that its page must have."""
    return {LABS: LAB_SECTIONS, FAILURES: FAILURE_SECTIONS}.get(chapter.part, SECTIONS)


def sections_of(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.M)


def references_of(text: str) -> list[str]:
    return [line for fence in SOURCE.finditer(text) for line in fence["references"].splitlines()]


def differences(in_page: Sequence[str], said: Sequence[SaidLine]) -> list[str]:
    """Lines that a page and a run do not agree on."""
    if len(in_page) != len(said):
        return [f"{len(in_page)} lines in the page, {len(said)} said"]
    return [
        f"{written!r} in the page, {line.text!r} said"
        for written, line in zip(in_page, said, strict=True)
        if _comparable(written, line.is_measured) != _comparable(line.text, line.is_measured)
    ]


def _comparable(line: str, is_measured: bool) -> str:
    return _VARIES.sub(" #", line) if is_measured else line
