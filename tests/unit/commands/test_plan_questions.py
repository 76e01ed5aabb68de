"""The questions a planner must answer, each asked on the command line as a person would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millstream.commands.main import app


@pytest.fixture(autouse=True)
def machine_that_was_never_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))


def plan(words: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, ["plan", *words.split(), "--json"])
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)


def by_topology(words: str) -> dict[str, dict[str, Any]]:
    return {found["topology"]: found for found in plan(words)[1]["plans"]}


def together(words: str) -> dict[str, Any]:
    """The placement that has all roles on all devices."""
    return next(placement for placement in plan(words)[1] if placement["name"] == "together")


SMALL = "-m wan2.1-t2v-1.3b --software compiled"
LARGE = "-m wan2.1-t2v-14b --size 320x576 --software compiled"


@pytest.mark.parametrize(("quantity", "above"), [("size", 480), ("window", 6), ("batch", 1)])
def test_what_is_the_largest_resolution_window_or_batch_that_fits(quantity: str, above: int) -> None:
    code, record = plan(f"{SMALL} --gpus 2xH200 --fps 16 --window 9 --max {quantity}")
    assert code == 0
    assert record["max"][quantity] >= above
    assert record["holds"]


def test_what_does_another_gpu_buy_as_tp() -> None:
    plans = by_topology(f"{LARGE} --gpus 4xH200 --fps 16")
    assert plans["front+tp2"]["fps"] > 1.3 * plans["front+1"]["fps"]


def test_what_does_another_gpu_buy_as_a_pipeline() -> None:
    """Nothing for one stream, another stream for several: its calls depend on each other."""
    plans = by_topology(f"{LARGE} --gpus 4xH200 --fps 8 --sessions 3")
    one = plans["front+1"]
    two = plans["front+pp2"]
    assert two["fps"] <= one["fps"]
    assert two["time_ms"]["busiest_device"] < 0.6 * one["time_ms"]["mesh"]


def test_what_does_another_gpu_buy_as_a_replica() -> None:
    (one, two) = (
        plan(f"{SMALL} --gpus {count}xH200 --fps 16 --window 9 --max sessions --topology local")[1]
        for count in (1, 2)
    )
    assert two["max"]["sessions"] == 2 * one["max"]["sessions"]


def test_what_does_fp8_save() -> None:
    native, quick = (
        by_topology(f"{LARGE} --gpus H200 --precision {kind}")["local"] for kind in ("native", "fp8")
    )
    assert quick["time_ms"]["mesh"] < 0.75 * native["time_ms"]["mesh"]
    assert quick["memory_gib"]["all"]["DiT weights"] < 0.6 * native["memory_gib"]["all"]["DiT weights"]


@pytest.mark.parametrize(("saving", "plain"), [("--offload", ""), ("--recompute full", "--recompute none")])
def test_what_do_offload_and_recompute_save_and_cost(saving: str, plain: str) -> None:
    """Less memory for more time, each."""
    words = "train --student wan2.1-t2v-1.3b --teacher wan2.1-t2v-1.3b --gpus 8xH200"
    saved, whole = (together(f"{words} {option}") for option in (saving, plain))
    assert sum(saved["groups"][0]["parts"].values()) < sum(whole["groups"][0]["parts"].values())
    assert saved["step_ms"] > whole["step_ms"]


def test_does_this_promise_hold() -> None:
    code, record = plan(f"{LARGE} --gpus 4xH200 --fps 24 --first-frame 1.5")
    assert code == 0
    assert record["plans"][0]["fps"] >= 24
    assert record["plans"][0]["time_ms"]["first_frame"] <= 1500


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gpus H200 --fps 60", "of 60 FPS"),
        ("--gpus H200 --fps 8 --first-frame 0.05", "the first frame comes after"),
        ("--gpus 2xH200 --fps 16 --sessions 40", "of 40 sessions"),
        ("--gpus RTX4090 --fps 1", "GiB and has"),
    ],
)
def test_and_if_not_what_is_in_the_way(words: str, said: str) -> None:
    code, record = plan(f"{LARGE} {words}")
    assert code == 1
    assert any(said in line for line in record["plans"][0]["missing"])


def test_why_is_that_plan_not_chosen() -> None:
    _, record = plan(f"{LARGE} --gpus 4xH200 --fps 24")
    best, *others = record["plans"]
    assert best["why_not"] == ""
    assert all(found["why_not"] for found in others)


def test_can_i_distil_this_student_with_that_teacher_and_critic_on_these_gpus() -> None:
    yes, fitting = plan(
        "train --student wan2.1-t2v-1.3b --teacher wan2.1-t2v-14b --critic wan2.1-t2v-1.3b --gpus 8xH200"
    )
    no, missing = plan(
        "train --student wan2.1-t2v-14b --teacher wan2.1-t2v-14b --critic wan2.1-t2v-14b --gpus 2xRTX4090"
    )
    assert (yes, no) == (0, 1)
    assert fitting[0]["fits"]
    assert missing[0]["missing"]


def test_which_roles_go_where() -> None:
    _, placements = plan("train --gpus 8xH200")
    for placement in placements:
        placed = {part for group in placement["groups"] for part in group["parts"]}
        assert {"student", "teacher", "critic"} <= placed
        assert sum(group["devices"] for group in placement["groups"]) == 8


def test_what_does_syncing_weights_cost() -> None:
    _, placements = plan("train --gpus 8xH200")
    costs = {placement["name"]: placement["sync_ms"] for placement in placements}
    assert costs["together"] == 0
    assert max(costs.values()) > 0
