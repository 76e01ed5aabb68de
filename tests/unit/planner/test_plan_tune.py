"""Where rollouts and learning go: together if it fits, in turns if not, apart where that is quicker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.core.presets import find_model
from millstream.planner.hardware import parse_fleet
from millstream.planner.questions.tuning import TuneAsk, tune_placements
from millstream.train.recipe import RECIPES

LARGE = find_model("wan2.1-t2v-1.3b")
ASK = TuneAsk(
    spec=LARGE, stream=LARGE.stream, fleet=parse_fleet("H200"), prompts=1, group=4, chunks=2, rows_at_once=1
)


def names(ask: TuneAsk) -> list[str]:
    return [placement.name for placement in tune_placements(ask) if not placement.missing]


def test_what_fits_together_is_not_moved() -> None:
    assert names(ASK) == ["together", "hybrid"]


def test_what_does_not_fit_together_takes_turns() -> None:
    both = {each.name: each.groups[0].total for each in tune_placements(ASK)}
    assert both["hybrid"] < both["together"]
    between = (both["hybrid"] + both["together"]) / 2 / 0.95 / 2**30
    tight = replace(ASK, fleet=replace(ASK.fleet, device=replace(ASK.fleet.device, memory_gib=between)))
    assert names(tight) == ["hybrid"]
    assert "GiB" in tune_placements(tight)[-1].missing


def test_two_devices_are_worth_it_where_both_work_at_once() -> None:
    two = replace(ASK, fleet=parse_fleet("2xH200"))
    assert names(two)[0] == "together", "in turns a second device only costs the way"
    assert names(replace(two, is_asynchronous=True))[0] == "apart"


def test_what_learns_is_16_bytes_a_parameter_and_adapters_are_fewer() -> None:
    parts = tune_placements(ASK)[0].groups[0].parts
    assert parts["actor"] + parts["optimiser"] == pytest.approx(4 * parts["reference"])
    adapted = tune_placements(replace(ASK, lora_rank=16))[0].groups[0].parts
    assert adapted["optimiser"] < 0.05 * parts["optimiser"]


def test_a_recipe_is_planned_from_the_command_line() -> None:
    result = CliRunner().invoke(app, ["plan", "tune", str(RECIPES / "reward-brook.toml"), "--gpus", "2xH200"])
    assert result.exit_code == 0, result.output
    assert "together" in result.output
    assert "apart" in result.output
