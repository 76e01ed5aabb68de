"""The page's benchmark: what is a stall, and what is said of it."""

from __future__ import annotations

import pytest

from benchmarks.page import PAGE, gaps, lines, missed
from benchmarks.pages import put_between

pytestmark = pytest.mark.slow


def test_a_steady_stream_has_no_stall() -> None:
    found = gaps([number / 8 for number in range(100)])
    assert (found["stalls"], found["stalled_s"]) == (0, 0)
    assert round(found["frames_per_second"], 6) == 8


def test_a_gap_that_the_rate_does_not_explain_is_one() -> None:
    drawn = [number / 8 for number in range(50)]
    found = gaps([*drawn, *(1.0 + number / 8 for number in range(50, 100))])
    assert found["stalls"] == 1
    assert round(found["stalled_s"], 6) == 1.0
    assert missed({"first_picture_s": 2.5, **found}) == [
        "first picture after 2.50 s, at most 2",
        "1 stalls, 1.00 s in all",
    ]


def test_the_model_card_says_what_was_measured_last() -> None:
    text = PAGE.read_text()
    assert put_between(text, "benchmarks.page", lines()) == text, "run python -m benchmarks.page --page"
