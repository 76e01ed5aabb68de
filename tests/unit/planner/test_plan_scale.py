"""What more devices buy: a stream gets quicker until something stops it, and streams grow with the
devices."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.commands.plan.options import PlanOptions
from millstream.planner.questions.scale import GAIN, scaling, stall

BIG = PlanOptions(model="wan2.1-t2v-14b", gpus="H100", size="480x832", software="compiled")


@pytest.fixture(autouse=True)
def machine_that_was_never_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")


def millstream(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", "scale", *words])
    return result.exit_code, result.stdout, result.stderr


def test_more_devices_never_make_a_stream_slower_or_carry_fewer() -> None:
    rungs = scaling(BIG.ask())
    assert [rung.devices for rung in rungs] == [1 << power for power in range(11)]
    for here, twice in pairwise(rungs):
        assert twice.quickest.fps >= here.quickest.fps
        assert twice.streams >= 2 * here.streams
        assert here.quickest.layout.num_devices <= here.devices


def test_one_stream_stalls_where_twice_the_devices_gain_little_and_it_is_said_why() -> None:
    rungs = scaling(BIG.ask())
    end = stall(rungs)
    assert end is not None
    here, twice = (rung for rung in rungs if rung.devices in (end.devices, 2 * end.devices))
    assert twice.quickest.fps / here.quickest.fps - 1 == pytest.approx(end.gain)
    assert end.gain < GAIN
    assert "communication" in end.why
    share = here.quickest.time.call.communication / here.quickest.time.call.total
    assert f"{100 * share:.0f}%" in end.why


def test_a_slow_decoder_is_named_where_it_is_what_a_stream_waits_for() -> None:
    end = stall(
        scaling(PlanOptions(model="wan2.1-t2v-1.3b", gpus="RTX4090", text="visiting", window=9).ask())
    )
    assert end is not None
    assert "the VAE on its own device" in end.why


def test_the_curves_are_said_written_and_recorded(tmp_path: Path) -> None:
    page = tmp_path / "curves.html"
    words = ("--model", "wan2.1-t2v-14b", "--gpus", "H100", "--size", "480p", "--software", "compiled")
    code, said, _ = millstream(*words, "--html", str(page))
    assert code == 0
    assert "one stream stalls at" in said
    assert page.read_text().count("<polyline") == 2
    record = json.loads(millstream(*words, "--json")[1])
    assert record["rungs"][-1]["devices"] == 1024
    assert record["stall"]["why"] in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "any"], "of one kind of card"),
        (["--topology", "tp2"], "leave --topology out"),
        (
            ["--gpus", "RTX3080", "--model", "wan2.1-t2v-14b", "--size", "1080p"],
            "no layout of wan2.1-t2v-14b fits RTX3080",
        ),
    ],
)
def test_what_has_no_curve_is_refused_in_a_line(words: list[str], said: str) -> None:
    code, _, error = millstream(*words)
    assert code == 2
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_training_is_asked_of_a_number_of_devices() -> None:
    result = CliRunner().invoke(app, ["plan", "train", "--gpus", "anyxH100"])
    assert result.exit_code == 2
    assert "--gpus 8xH100" in result.stderr
