"""Memory of training steps agrees with the planner, here and in the committed results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest

from benchmarks.report import RESULTS
from benchmarks.train_memory import CASES as EACH
from benchmarks.train_memory import CONFIG, WAYS, beside_plan, live_bytes, names_of_missed, planned_bytes
from benchmarks.train_step import CASES, off_plan, planned
from millstream.core.config import Recompute

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["one process", "LoRA", "masters"])
@pytest.mark.parametrize("recompute", get_args(Recompute))
def test_a_step_holds_what_is_planned(recompute: Recompute, name: str) -> None:
    """`python -m benchmarks.train_memory` does the same on ranks."""
    way = WAYS[name]
    config = replace(CONFIG, layers=2)
    assert live_bytes(0, way, recompute, config) == pytest.approx(
        planned_bytes(way, recompute, config), rel=0.05
    )


def test_ranks_hold_what_the_planner_says_now() -> None:
    """Compare the committed result with the planner; `python -m benchmarks.train_memory` measures again."""
    found = [
        beside_plan(each)
        for each in json.loads((RESULTS / "train_memory.json").read_text())["measured"]["rows"]
    ]
    rows = {(each["plan"], each["shape"], each["recompute"]) for each in found}
    assert rows == {(way, *case) for way in WAYS for case in EACH}
    assert names_of_missed(found) == []


def test_a_gpu_takes_the_time_and_memory_that_the_planner_says_now() -> None:
    """Compare the committed result with the planner; `python -m benchmarks.train_step` measures again."""
    found = json.loads((RESULTS / "train_step.json").read_text())["measured"]["cases"]
    assert off_plan({name: case | planned(CASES[name]) for name, case in found.items()}) == []
