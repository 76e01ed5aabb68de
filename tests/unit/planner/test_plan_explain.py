"""Numbers that can be checked by hand, and the report that shows them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.commands.plan.explain import explain_number
from millstream.commands.plan.options import ExplainOptions, PlanOptions
from millstream.planner.answer_page import html_report
from millstream.planner.explain import EXPLAINED, Explanation
from millstream.planner.search import search


@pytest.fixture(autouse=True)
def machine_that_was_never_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))


def explained(what: str, topology: str = "tp2", **changes: object) -> Explanation:
    on: dict[str, Any] = dict(model="wan2.1-t2v-14b", gpus="5xH200", topology=topology, software="compiled")
    return explain_number(ExplainOptions(what=what, **on | changes))


def summed(filled: str) -> float:
    return float(eval(filled, {"__builtins__": {}, "min": min, "max": max}))


@pytest.mark.parametrize("topology", ["tp2", "front+tp2", "front+pp2xtp2"])
@pytest.mark.parametrize("what", [*EXPLAINED, "bubble", "adam"])
def test_the_filled_formula_gives_the_number(what: str, topology: str) -> None:
    found = explained(what, topology)
    assert summed(found.filled) == pytest.approx(found.value, rel=1e-4)


def test_the_number_is_the_plans() -> None:
    options = ExplainOptions(what="period", model="wan2.1-t2v-14b", gpus="4xH200", software="compiled")
    best = search(options.ask()).best
    assert explain_number(options).value == best.time.period_ms
    assert explain_number(replace(options, what="cost")).value == best.dollars_per_stream_hour


@pytest.mark.parametrize(("model", "gib"), [("wan2.1-t2v-1.3b", 5.6), ("wan2.1-t2v-14b", 25.0)])
def test_a_window_of_21_frames_is_the_known_size(model: str, gib: float) -> None:
    options = ExplainOptions(what="window", model=model, gpus="H200", size="480x832", window=21)
    assert explain_number(options).value == pytest.approx(gib, rel=0.01)


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
    ("option", "values", "what"),
    [("--steps", ("1000,500", "1000"), "period"), ("--fps", ("6", "24"), "sessions")],
)
def test_a_number_is_explained_of_the_stream_that_is_asked_for(
    option: str, values: tuple[str, str], what: str
) -> None:
    def value(text: str) -> float:
        result = CliRunner().invoke(
            app, ["plan", "explain", what, "--topology", "local", option, text, "--json"]
        )
        return float(json.loads(result.stdout)["value"])

    one, other = map(value, values)
    assert one != other


@pytest.mark.parametrize("fps", [24.0, 240.0])
def test_a_report_is_one_file_that_names_every_plan_and_loads_nothing(tmp_path: Path, fps: float) -> None:
    path = tmp_path / "deep" / "report.html"
    words = [
        "--model",
        "wan2.1-t2v-14b",
        "--gpus",
        "4xH200",
        "--fps",
        str(fps),
        "--software",
        "compiled",
        "--html",
        str(path),
    ]
    assert CliRunner().invoke(app, ["plan", *words]).exit_code == (0 if fps == 24 else 1)
    page = path.read_text()
    assert "http" not in page
    assert "<script" not in page
    assert page.count("<svg") == 3
    request = PlanOptions(model="wan2.1-t2v-14b", gpus="4xH200", fps=fps, software="compiled")
    answer = search(request.ask())
    assert page == html_report(answer)
    assert all(f">{plan.layout}<" in page for plan in answer.plans[:12])
    assert ("No plan holds" in page) is (fps == 240)


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["plan", "--html", str(tmp_path / "file" / "report.html")])
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
