"""The tables of options in docs/, from the dataclasses that are the options.

    python -m millstream.commands.option_tables

writes them into the pages, each between two marks that bear the class's name. What a page says around them
stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from millstream.commands.config_file import kind_of, type_in_file
from millstream.commands.options import PastOptions, PlacedOptions
from millstream.commands.plan.options import PlanOptions
from millstream.commands.serve import CapacityOptions, DoorOptions, FileOptions, InputOptions, LifeOptions

DOCS = Path(__file__).parents[2] / "docs"
TABLES: Mapping[str, tuple[type[Any], ...]] = MappingProxyType(
    {
        "serving.md": (
            PlacedOptions,
            PastOptions,
            DoorOptions,
            InputOptions,
            CapacityOptions,
            LifeOptions,
            FileOptions,
        ),
        "planning.md": (PlanOptions,),
    }
)
"""Pages, and the classes whose options they list."""


def table(options: type[Any]) -> Iterator[str]:
    """Lines of a Markdown table: each option, its type as `serve --config` has it, its default and its
    help."""
    yield "| option | type | default | what it is |"
    yield "|---|---|---|---|"
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        annotation = hints[field.name]
        info = next(each for each in get_args(annotation)[1:] if hasattr(each, "param_decls"))
        spelled = (
            info.default,
            *(info.param_decls or ()),
        )  # Typer keeps the first name where a default would be
        names = [name for name in spelled if isinstance(name, str) and name.startswith("--")]
        if not names:
            word = field.name.replace("_", "-")
            names = [f"--{word}", f"--no-{word}"] if kind_of(annotation) is bool else [f"--{word}"]
        if info.is_eager:
            continue  # it names the file that the others stand in
        cells = (
            ", ".join(f"`{name}`" for name in names),
            _type(annotation),
            _default(field.default),
            _help(info.help),
        )
        yield f"| {' | '.join(cells)} |"


def put_between(text: str, name: str, lines: Iterator[str]) -> str:
    """The page with these lines between the marks of that name."""
    begin = f"<!-- {name} begins -->"
    end = f"<!-- {name} ends -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    assert found, f"no {begin} with {end} after it"
    return "\n".join((before + begin, *lines, end + after))


def page_with_tables(page: Path, classes: tuple[type[Any], ...]) -> str:
    text = page.read_text()
    for options in classes:
        text = put_between(text, options.__name__, table(options))
    return text


def _type(annotation: Any) -> str:
    kind = kind_of(annotation)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f'`"{choice.value}"`' for choice in kind)
    kind = type_in_file(annotation)
    if kind == list[str]:
        return "list of texts"
    words = {str: "text", Path: "text", int: "number", float: "number", bool: "`true` or `false`"}
    return " or ".join(words[each] for each in get_args(kind) or (kind,))


def _default(value: Any) -> str:
    if value is MISSING or value is None or value == "":
        return ""
    if isinstance(value, Enum):
        value = value.value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _help(text: str) -> str:
    """Help as Markdown: Rich's bold, and what a table's cell cannot hold."""
    return re.sub(r"\[/?bold\]|\[/\]", "**", text).replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    for name, classes in TABLES.items():
        page = DOCS / name
        page.write_text(page_with_tables(page, classes))


if __name__ == "__main__":
    main()
