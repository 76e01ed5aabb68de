"""Every figure within a sentence is written by code: none is stale, none was typed by hand.

A number is a figure if it has a unit, a fraction, an exponent or three digits, or if it is worked out (4 +
12, 3 x 8). Others are counts and names: two ranks, chapter 3, ZeRO-3.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from course import figures
from course.catalogue import CHAPTERS
from course.figures import FIGURE, FIGURES, with_figures, without_marks
from course.reading.catalogue import PAPERS
from millstream.core.errors import CourseError

PAGES = {page.name: page.page for page in (*CHAPTERS, *PAPERS)}
EVERY = pytest.mark.parametrize("name", PAGES)
BY_HAND = {
    "collectives": {"2.8": "a version of torch"},
    "physics": {"400": "what such a network is called"},
    "speculation": {"three times as": "published by the papers that the sentence names"},
    "ppo": {"95 times": "which interval is meant", "100": "the same"},
    "zero_infinity": {"four times as": "the paper's"},
    "sequence_parallel": {"34 bytes": "the paper's, which a test holds the planner to"},
}
"""By page: what may stand there without code, and why."""
MEASURES = "[mun]s|s|seconds?|minutes?|hours?|days?|(?:milli|micro)seconds|[kKMGTP]i?B(?:/s)?|bytes|(?:mega|giga)bytes"
MEASURES += "|[MGTP]FLOP/s|dB|Hz|watts|dollars|percent|times (?:as|less|fewer|more|smaller|larger|quicker|faster|slower|longer)"
COUNTED = "x|times|digits|pictures|frames|tokens|letters|operations"
WORDS = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|sixteen|twenty|thirty|fifty|sixty|hundred|thousand"
BEGINS = r"(?<![\w.])(?<!\w-)"
ENDS = r"(?!\w|[.,]\d)"
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?"
TYPED = re.compile(
    rf"{BEGINS}{NUMBER}\s*(?:%|(?:{MEASURES}|{COUNTED})\b)|"
    rf"\b(?:{WORDS})\s+(?:{MEASURES})\b|"
    rf"{BEGINS}{NUMBER}\s+[-+*/=]\s+\d|"
    rf"{BEGINS}(?:\d+\.\d+|\d+(?:\.\d+)?e-?\d+|\d[\d,]*\d\d){ENDS}"
)
COURSE = Path(figures.__file__).parent
ANSWERS = ("exercise", "solution", "judge")
CODE = re.compile(r"^```.*?^```$|`[^`]*`", re.M | re.S)
NOT_PROSE = (
    r"<!-- (?P<block>output \w+|benchmarks\.\w+) begins -->.*?<!-- (?P=block) ends -->",
    CODE.pattern,
    r"\$[^$\n]+\$",
    r"\]\([^)]*\)",
    r"^Time: \d+ minutes",  # the catalogue's, which another test compares
    r"^## What was shown$.*?(?=^## )",  # of a paper: published there, and cited at the head of its page
)


def typed_in(text: str) -> list[str]:
    """Figures of a page that no code writes."""
    for each in (*NOT_PROSE, FIGURE.pattern):
        text = re.sub(each, " ¤ ", text, flags=re.M | re.S)
    return [" ".join(found[0].split()) for found in TYPED.finditer(text)]


@EVERY
def test_figures_are_what_code_computes_today(name: str) -> None:
    text = PAGES[name].read_text()
    assert with_figures(text) == text, "python -m course.write_pages figures"
    assert not any("<!-- = " in code[0] for code in CODE.finditer(text)), "code shows its comments"


@EVERY
def test_no_figure_was_typed_by_hand(name: str) -> None:
    fix = "compute it in course/figures.py and write 37<!-- = NAME --> ms"
    assert sorted(typed_in(PAGES[name].read_text())) == sorted(BY_HAND.get(name, {})), fix


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("It takes 37 ms.", ["37 ms"]),
        (
            "It is 3x as fast, or twelve times as fast, at 30 frames/s.",
            ["3x", "twelve times as", "30 frames"],
        ),
        (
            "16 bytes a parameter, so 480 GB; 5 % of 989 TFLOP/s.",
            ["16 bytes", "480 GB", "5 %", "989 TFLOP/s"],
        ),
        ("That is 4 + 12 of 76,864, or 0.75.", ["4 + 1", "76,864", "0.75"]),
        (
            "Two ranks of an H200 hold 7B in bf16 by ZeRO-3, as in chapter 3 and at 480x832; 1F1B waits "
            "three times.",
            [],
        ),
        ("It takes 37<!-- = read_7b_ms --> ms, and `--limit 40` s.", []),
    ],
)
def test_what_counts_as_a_figure(sentence: str, found: list[str]) -> None:
    assert typed_in(sentence) == found


def test_a_figure_takes_its_place_and_the_site_shows_only_its_number() -> None:
    page = "reads 99<!-- = weights_7b_gb --> GB"
    assert with_figures(page) == "reads 14<!-- = weights_7b_gb --> GB"
    assert without_marks(page) == "reads 99 GB"
    with pytest.raises(CourseError, match="there is no figure 'gone'"):
        with_figures("3<!-- = gone --> ms")
    with pytest.raises(CourseError, match=r"1 marks .* have no number in front"):
        with_figures("three<!-- = weights_7b_gb --> GB")


def test_every_figure_is_on_a_page() -> None:
    shown = {found["name"] for page in PAGES.values() for found in FIGURE.finditer(page.read_text())}
    assert shown == set(FIGURES)


SAYING = [
    path
    for path in COURSE.rglob("*.py")
    if path.parent.name in ("asked", "reading") or path.stem.endswith("questions")
]
SAYING += [
    COURSE / "sliders.py",
    *(path for path in COURSE.glob("chapters/*/*.py") if path.stem not in ANSWERS),
]
SAID = re.compile(
    r"95%|times in 100|"  # which interval is meant
    r"\b(?:2|two) bytes|4 tokens\^2|0 \+ 1 \+|"  # within a formula
    r"(?:within|to) 1e-\d|"  # what the script asserts
    r"\b1 [kMG]B\b|"  # of a table or an axis
    r"four times as wide|the paper says 1\.5 to 2|"  # published by the paper that is asked about
    r"status 400|hybrid 2 x 2|arxiv|\d{4}\.\d{5}|https:\S+|123456789|0121020\.1"  # names and strings
)


def test_what_scripts_sliders_and_the_quiz_say_is_computed() -> None:
    said = [
        (str(path), SAID.sub("¤", literal)) for path in SAYING for literal in literals_in(path.read_text())
    ]
    assert [each for each in said if TYPED.search(each[1])] == []


def literals_in(source: str) -> Iterator[str]:
    """Collect the texts of a module's code that it does not compute: no docstrings, no formats, no errors and
    asserts."""
    tree = ast.parse(source)
    skipped: list[ast.AST] = [node for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.Assert)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec:
            skipped.append(node.format_spec)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.append(node.value)
    left_out = {id(inner) for node in skipped for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value
