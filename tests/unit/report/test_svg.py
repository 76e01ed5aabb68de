"""Plots as SVG: lengths, legends and places, whatever is drawn."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.report.svg import Bar, Point, points, stacked_bars


def test_bars_are_as_long_as_their_parts_and_hold_what_is_typed() -> None:
    bars = [
        Bar(label="<a>", parts={"x & y": 1.0, "z": 3.0}, note="4"),
        Bar(label="b", parts={"z": 2.0}, note="2", dim=True),
    ]
    drawn = ElementTree.fromstring(stacked_bars(bars, limit=5.0, limit_label="5"))
    widths = [float(rect.get("width", "0")) for rect in drawn.iter("rect") if rect.get("height") == "19"]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert widths[2] == pytest.approx(2 * widths[0], rel=0.01)
    assert "<a>" in [text.text for text in drawn.iter("text")]


@given(st.lists(st.text("abc", min_size=1, max_size=60), min_size=1, max_size=12, unique=True))
def test_names_in_a_legend_do_not_run_into_each_other(names: list[str]) -> None:
    drawn = ElementTree.fromstring(
        stacked_bars([Bar(label="", parts=dict.fromkeys(names, 1.0), note="")], limit=1.0, limit_label="")
    )
    lines: dict[str, list[tuple[float, str]]] = {}
    for text in (text for text in drawn.iter("text") if text.text in names):
        lines.setdefault(text.get("y", ""), []).append((float(text.get("x", "nan")), text.text or ""))
    assert sum(len(line) for line in lines.values()) == len(names)
    for line in lines.values():
        for (x, name), (following, _) in pairwise(sorted(line)):
            assert x + 6.5 * len(name) <= following - 16, "the next one's square is left of it"


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-3, 1e6), st.booleans()), max_size=8))
@example([(5e-324, 1.0, False)])
def test_every_point_lies_inside_its_plot(values: list[tuple[float, float, bool]]) -> None:
    found = [Point(label=str(i), x=x, y=y, marked=marked) for i, (x, y, marked) in enumerate(values)]
    drawn = ElementTree.fromstring(points(found, x_label="x", y_label="y"))
    circles = list(drawn.iter("circle"))
    assert len(circles) == len(found)
    for circle in circles:
        x = float(circle.get("cx", "nan"))
        y = float(circle.get("cy", "nan"))
        assert math.isfinite(x)
        assert 80 <= x <= 711
        assert 19 <= y <= 331
