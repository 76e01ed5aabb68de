"""A file that is nested a hundred thousand deep is refused in one line, whatever it is meant to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.commands.plan.use import _read as read_used_plan
from millstream.core.errors import MillstreamError
from millstream.core.events import read_events
from millstream.core.toml_file import TomlFile
from millstream.models.weights.manifest import read_manifest
from millstream.planner.cards.own import _read as read_card
from millstream.planner.profile import read_profile
from millstream.profiler.against_plan import read_plan
from millstream.train.finetune.recipe import TuningRecipe
from millstream.train.finetune.translate import read_deepspeed
from millstream.train.recipe import read_recipe_file

DEPTH = 100_000
LISTS = "[" * DEPTH + "]" * DEPTH
OBJECTS = '{"a":' * DEPTH + "1" + "}" * DEPTH
TABLES = "a = " + "{a=" * 5_000 + "1" + "}" * 5_000 + "\n"

READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "serve.toml": (lambda path: TomlFile.read(str(path), page="docs"), TABLES),
    "recipe.toml": (lambda path: read_recipe_file(path, TuningRecipe, command="millstream train"), TABLES),
    "card.toml": (read_card, TABLES),
    "config.json": (lambda path: read_manifest(path.parent), OBJECTS),
    "events.json": (read_events, LISTS),
    "profile.json": (read_profile, LISTS),
    "plan.json": (read_used_plan, LISTS),
    "traced-plan.json": (read_plan, LISTS),
    "deepspeed.json": (read_deepspeed, OBJECTS),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_nested_too_deep_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    read, content = READERS[name]
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(MillstreamError) as refusal:
        read(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)
