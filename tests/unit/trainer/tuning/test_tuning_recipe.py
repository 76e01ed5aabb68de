"""A recipe that cannot be is refused in one line that says what would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.core.errors import ConfigError
from millstream.core.presets import find_model
from millstream.trainer.plan import RECIPES
from millstream.trainer.tuning.recipe import LoRAPlan, read_recipe
from tests.unit.trainer.tuning.datasets import SPEC, recipe


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": 0}, "steps must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"drop": 1.0}, "drop must be from 0 to less than 1"),
        ({"noise_from": 700.0, "noise_to": 600.0}, "noise_from must be below noise_to"),
        ({"spike": 0.5}, "spike must be above 1"),
        ({"lora": LoRAPlan(rank=0)}, r"\[lora\] needs a rank"),
        ({"optimiser": "muon", "state_bits": 8}, "state_bits and offload go with optimiser = adamw, got muon"),
        ({"optimiser": "adafactor", "offload": "optimiser"}, "go with optimiser = adamw, got adafactor"),
        ({"parallel": {"dp": 3}}, "a batch of 4 does not divide .* multiple of 3"),
        ({"parallel": {"dd": 3}}, r"\[parallel\] has no dd; it has dp"),
        ({"parallel": {"dp": "two"}}, r"\[parallel\] dp must be a number, got 'two'"),
        ({"parallel": {"dp": 4, "data": "zero9"}}, "data must be one of"),
        ({"parallel": {"tp": 2, "data": "zero3", "dp": 2}}, "tp goes with data = replicas or fsdp"),
    ],
)
def test_what_contradicts_itself_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        recipe(**changed).check(SPEC.dit)


def test_a_file_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        'model = "wan-tiny"\nweights = ["random"]\ndata = "clips"\nsteps = 3\nbatch = 2\nlr = 1e-4\n'
        "[lora]\nrank = 4\n[parallel]\ndp = 2\ndata = 'fsdp'\n"
    )
    found = read_recipe(path)
    assert (found.lora, found.plan.dp, found.plan.data) == (LoRAPlan(rank=4), 2, "fsdp")


SHIPPED = [path for path in sorted(RECIPES.glob("*.toml")) if not path.name.startswith("brook")]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_recipes_that_ship_can_be(path: Path) -> None:
    found = read_recipe(path)
    found.check(find_model(found.model).dit)


@pytest.mark.parametrize("text", ["model = 3", "steps = ", 'model = "x"\nunknown = 1'])
def test_what_is_no_recipe_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a recipe") as raised:
        read_recipe(path)
    assert "\n" not in str(raised.value)
