"""A training recipe: the words that mean the same in all of them, and how one is read from its file.

An error names the right values or fields, the new name of an old field, or the command whose recipe it is.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import inspect

from millstream.core.errors import ConfigError

Recipe = TypeVar("Recipe", bound=msgspec.Struct)
RECIPES = Path(__file__).parent / "recipes"
"""Folder of the recipes that come with the package."""
COMMANDS = {
    "stages": "millstream train brook --recipe",
    "rewards": "millstream tune",
    "data": "millstream train",
}
"""Commands, by a field that only their recipes have."""


class StepRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of how steps change weights: of a run, or of one stage of it. Kinds of recipes differ in
    defaults, not in meanings."""

    RENAMED: ClassVar[dict[str, str]] = {"clip": "grad_clip"}
    """Renamed fields, by their old names."""

    steps: int
    lr: float
    """Highest learning rate of the schedule."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Schedule after the warm-up: half a cosine down to a hundredth of `lr`, or `lr` itself."""
    cosine_over: int = 0
    """Steps the cosine is drawn over, where training ends before its rate does; 0 for `steps`."""
    warm_up: int = 20
    """Steps over which the rate rises to `lr`."""
    grad_clip: float = 1.0
    """Largest norm of all gradients together; larger ones are scaled down to it."""
    weight_decay: float = 0.01
    ema: float = 0.0
    """Share of the weights' moving average that is kept at a step; the average is what the run leaves. 0 for
    no average."""

    def check_numbers(self) -> None:
        """Raise ConfigError for a number that is out of its range, or no number."""
        check_above_0(self, ("steps", "lr", "grad_clip"))
        check_from_0(self, ("cosine_over", "warm_up", "weight_decay"))
        check_share(self, ("ema",))


class TrainRecipe(StepRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recipe of one run."""

    seed: int = 0
    """Seed of all randomness of the run, together with the step."""
    checkpoint_every: int = 100
    """Steps between checkpoints; one is written at the end and when the run is stopped too."""

    def check_numbers(self) -> None:
        super().check_numbers()
        check_above_0(self, ("checkpoint_every",))
        check_from_0(self, ("seed",))


def check_above_0(recipe: msgspec.Struct, names: Iterable[str]) -> None:
    for name in names:
        if not 0 < getattr(recipe, name) < math.inf:
            raise ConfigError(f"{name} must be above 0, got {getattr(recipe, name)}")


def check_from_0(recipe: msgspec.Struct, names: Iterable[str]) -> None:
    for name in names:
        if not 0 <= getattr(recipe, name) < math.inf:
            raise ConfigError(f"{name} must be 0 or more, got {getattr(recipe, name)}")


def check_share(recipe: msgspec.Struct, names: Iterable[str]) -> None:
    for name in names:
        if not 0 <= getattr(recipe, name) < 1:
            raise ConfigError(f"{name} must be from 0 to less than 1, got {getattr(recipe, name)}")


def read_recipe_file(path: Path, kind: type[Recipe], *, command: str, changes: Sequence[str] = ()) -> Recipe:
    """One of `command`'s. `changes` are `pool.clips=100` or, of what has a name, `stages.teacher.steps=5`: they
    replace what the file says."""
    try:
        data = path.read_bytes()
    except OSError as error:
        ours = RECIPES / path.name
        helped = command.removesuffix(" --recipe")
        way = (
            f"copy the one that comes with the package: {ours}" if ours.is_file() else f"see {helped} --help"
        )
        raise ConfigError(f"cannot read {path}: {error.strerror}; {way}") from None
    try:
        if not changes:
            return msgspec.toml.decode(data, type=kind)
        said = msgspec.toml.decode(data, type=dict[str, Any])
        for change in changes:
            _change(said, change)
        return msgspec.convert(said, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        whose = _whose(data)
        if whose not in ("", command):
            raise ConfigError(f"{path} is a recipe of another command: {whose} {path}") from None
        raise ConfigError(f"{path} is not a recipe of {command}: {_with_choices(error, kind)}") from None


def _change(said: dict[str, Any], change: str) -> None:
    """Put a value in its place; raise ConfigError where there is none."""
    path, equals, text = change.partition("=")
    *places, name = path.strip().split(".")
    if not (equals and name):
        raise ConfigError(f"--set takes NAME=VALUE, as pool.clips=100; got {change!r}")
    into: Any = said
    for place in places:
        if isinstance(into, list):
            into = next((each for each in into if isinstance(each, dict) and each.get("name") == place), None)
        elif isinstance(into, dict):
            into = into.setdefault(place, {})
        if not isinstance(into, dict | list):
            raise ConfigError(f"--set {change}: the recipe has no {place}")
    if not isinstance(into, dict):
        raise ConfigError(f"--set {change}: name one of {places[-1]} first, as stages.teacher.steps=5")
    try:
        into[name] = msgspec.toml.decode(f"value = {text}", type=dict[str, Any])["value"]
    except (msgspec.MsgspecError, ValueError):
        raise ConfigError(f"--set {change}: {text.strip()!r} is no TOML value; text has quotes") from None


def _whose(data: bytes) -> str:
    """The command that such a file is for; empty where that cannot be seen."""
    try:
        said: dict[str, Any] = msgspec.toml.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    return next((command for field, command in COMMANDS.items() if field in said), "")


def _with_choices(error: Exception, kind: type) -> str:
    """The error's words, with the new name of an old field or the choices there are. `kind` is what was
    read."""
    found = re.match(
        r"(?:Invalid enum value|Object contains unknown field `(.*?)`).*?(?: - at `\$(.*)`)?$", str(error)
    )
    if found is None:
        return str(error)
    wrong, place = found.groups()
    if (now := getattr(kind, "RENAMED", {}).get(wrong)) is not None:
        return f"{wrong} is {now} now"
    choices = _choices(inspect.type_info(kind), re.findall(r"\.([^.\[]+)", place or ""))
    near = difflib.get_close_matches(wrong or "", choices, n=1)
    return (
        f"{error}; did you mean {near[0]}?"
        if near
        else f"{error}; known: {', '.join(choices)}"
        if choices
        else str(error)
    )


def _choices(kind: inspect.Type, path: list[str]) -> list[str]:
    match kind:
        case inspect.LiteralType(values=values) if not path:
            return [str(value) for value in values]
        case inspect.StructType(fields=fields) if not path:
            return [field.encode_name for field in fields]
        case inspect.StructType(fields=fields):
            return next(
                (_choices(field.type, path[1:]) for field in fields if field.encode_name == path[0]), []
            )
        case inspect.UnionType(types=types):
            return [choice for each in types for choice in _choices(each, path)]
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return _choices(item, path)
    return []
