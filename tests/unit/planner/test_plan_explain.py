"""Numbers that can be checked by hand, and the report that shows them."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from millstream.cli.main import app
from millstream.commands.plan.explain import Assumptions, explain_number
from millstream.commands.plan.run import PlanRequest
from millstream.planner.drawing import Bar, Point, points, stacked_bars
from millstream.planner.explain import EXPLAINED, Explanation
from millstream.planner.report import html_report
from millstream.planner.search import search


@pytest.fixture(autouse=True)
def machine_that_was_never_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))


def explained(what: str, topology: str = "tp2", **changes: object) -> Explanation:
    request = PlanRequest(model="wan2.1-t2v-14b", gpus="5xH200", topology=topology, software="compiled", **changes)  # type: ignore[arg-type]
    return explain_number(what, request, Assumptions())


def summed(filled: str) -> float:
    return float(eval(filled, {"__builtins__": {}, "min": min, "max": max}))


@pytest.mark.parametrize("topology", ["tp2", "front+tp2", "front+pp2xtp2"])
@pytest.mark.parametrize("what", [*EXPLAINED, "bubble", "adam"])
def test_the_filled_formula_gives_the_number(what: str, topology: str) -> None:
    found = explained(what, topology)
    assert summed(found.filled) == pytest.approx(found.value, rel=1e-4)


def test_the_number_is_the_plans() -> None:
    request = PlanRequest(model="wan2.1-t2v-14b", gpus="4xH200", software="compiled")
    best = search(request.ask()).best
    assert explain_number("period", request, Assumptions()).value == best.time.period_ms
    assert explain_number("cost", request, Assumptions()).value == best.dollars_per_stream_hour


@pytest.mark.parametrize(("model", "gib"), [("wan2.1-t2v-1.3b", 5.6), ("wan2.1-t2v-14b", 25.0)])
def test_a_window_of_21_frames_is_the_known_size(model: str, gib: float) -> None:
    request = PlanRequest(model=model, gpus="H200", changes=dict(height=480, width=832, window=21))
    assert explain_number("window", request, Assumptions()).value == pytest.approx(gib, rel=0.01)


def test_an_all_reduce_of_one_is_refused_with_the_fix() -> None:
    result = CliRunner().invoke(app, ["plan", "explain", "all-reduce"])
    assert (result.exit_code, "add --topology tp2" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["joy"], "is not explained of a video model; known: weights"),
        (["bubble", "--stages", "0"], "1 or more"),
        (["bubble", "--pipeline", "magic"], "known: gpipe"),
        (["adam", "--parameters", "-1"], "--parameters must be"),
        (["adam", "--parameters", "nan"], "--parameters must be"),
        (["adam", "--shards", "0"], "1 or more devices"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_one_line(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["plan", "explain", *words])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_people_read_three_lines_and_a_reason() -> None:
    result = CliRunner().invoke(app, ["plan", "explain", "bubble", "--stages", "4", "--micro-batches", "8"])
    lines = result.stdout.strip().splitlines()
    assert len(lines) == 4
    assert lines[2].endswith("27.27 %")
    record = json.loads(CliRunner().invoke(app, ["plan", "explain", "bubble", "--json"]).stdout)
    assert record["value"] == pytest.approx(300 / 11)


@pytest.mark.parametrize(
    ("option", "values", "what"), [("--steps", ("1000,500", "1000"), "period"), ("--fps", ("6", "24"), "sessions")]
)
def test_a_number_is_explained_of_the_stream_that_is_asked_for(option: str, values: tuple[str, str], what: str) -> None:
    def value(text: str) -> float:
        result = CliRunner().invoke(app, ["plan", "explain", what, "--topology", "local", option, text, "--json"])
        return float(json.loads(result.stdout)["value"])

    one, other = map(value, values)
    assert one != other


@pytest.mark.parametrize("fps", [24.0, 240.0])
def test_a_report_is_one_file_that_names_every_plan_and_loads_nothing(tmp_path: Path, fps: float) -> None:
    path = tmp_path / "deep" / "report.html"
    words = ["--model", "wan2.1-t2v-14b", "--gpus", "4xH200", "--fps", str(fps), "--software", "compiled", "--html", str(path)]
    assert CliRunner().invoke(app, ["plan", *words]).exit_code == (0 if fps == 24 else 1)
    page = path.read_text()
    assert "http" not in page
    assert "<script" not in page
    assert page.count("<svg") == 3
    request = PlanRequest(model="wan2.1-t2v-14b", gpus="4xH200", changes=dict(fps=fps), software="compiled")
    answer = search(request.ask())
    assert page == html_report(answer)
    assert all(f">{plan.layout}<" in page for plan in answer.plans[:12])
    assert ("No plan holds" in page) is (fps == 240)


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["plan", "--html", str(tmp_path / "file" / "report.html")])
    assert result.exit_code == 2
    assert "cannot write" in result.stderr


def test_bars_are_as_long_as_their_parts_and_hold_what_is_typed() -> None:
    bars = [Bar(label="<a>", parts={"x & y": 1.0, "z": 3.0}, note="4"), Bar(label="b", parts={"z": 2.0}, note="2", dim=True)]
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
        x, y = float(circle.get("cx", "nan")), float(circle.get("cy", "nan"))
        assert math.isfinite(x)
        assert 80 <= x <= 711
        assert 19 <= y <= 331
