"""A recipe out of its file. What is wrong is said with what could stand there instead: the parser names the wrong value or
field, this the right ones, or the command whose recipe it is.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from millstream.core.errors import ConfigError

Recipe = TypeVar("Recipe", bound=msgspec.Struct)
RECIPES = Path(__file__).parent / "recipes"
"""Those that come with the package."""
COMMANDS = {"stages": "millstream train brook --recipe", "rewards": "millstream tune", "data": "millstream train"}
"""By what only their recipes have."""


def read_recipe_file(path: Path, kind: type[Recipe], *, command: str) -> Recipe:
    """One of `command`'s."""
    try:
        data = path.read_bytes()
    except OSError as error:
        ours, helped = RECIPES / path.name, command.removesuffix(" --recipe")
        way = f"copy the one that comes with the package: {ours}" if ours.is_file() else f"see {helped} --help"
        raise ConfigError(f"cannot read {path}: {error.strerror}; {way}") from None
    try:
        return msgspec.toml.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        whose = _whose(data)
        if whose not in ("", command):
            raise ConfigError(f"{path} is a recipe of another command: {whose} {path}") from None
        raise ConfigError(f"{path} is not a recipe of {command}: {_with_choices(error, kind)}") from None


def _whose(data: bytes) -> str:
    """The command that such a file is for; empty where that cannot be seen."""
    try:
        said: dict[str, Any] = msgspec.toml.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError):
        return ""
    return next((command for field, command in COMMANDS.items() if field in said), "")


def _with_choices(error: Exception, kind: type) -> str:
    """Its words, and where one of several values is wanted, which these are. `kind` is what was read."""
    found = re.match(r"(?:Invalid enum value|Object contains unknown field `(.*?)`).*?(?: - at `\$(.*)`)?$", str(error))
    if found is None:
        return str(error)
    wrong, place = found.groups()
    choices = _choices(inspect.type_info(kind), re.findall(r"\.([^.\[]+)", place or ""))
    near = difflib.get_close_matches(wrong or "", choices, n=1)
    return f"{error}; did you mean {near[0]}?" if near else f"{error}; known: {', '.join(choices)}" if choices else str(error)


def _choices(kind: inspect.Type, path: list[str]) -> list[str]:
    match kind:
        case inspect.LiteralType(values=values) if not path:
            return [str(value) for value in values]
        case inspect.StructType(fields=fields) if not path:
            return [field.encode_name for field in fields]
        case inspect.StructType(fields=fields):
            return next((_choices(field.type, path[1:]) for field in fields if field.encode_name == path[0]), [])
        case inspect.UnionType(types=types):
            return [choice for each in types for choice in _choices(each, path)]
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return _choices(item, path)
    return []
