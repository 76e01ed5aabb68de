"""Tables that a command writes into a page of docs/, between two marks that bear the command's name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS

Tables = Mapping[str, Callable[[], Iterable[str]]]
"""Tables of one page, by the name of their marks."""


def report_of(name: str) -> dict[str, Any]:
    """A result that is there."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def is_there(name: str) -> bool:
    """Return whether such a result was measured; those of a GPU come later than the page that shows them."""
    return (RESULTS / f"{name}.json").exists()


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} begins -->", f"<!-- {name} ends -->"


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_tables(page: Path, tables: Tables) -> None:
    for name, table in tables.items():
        write_between(page, name, table())


def write_between(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace the lines that were there."""
    page.write_text(put_between(page.read_text(), name, lines))


def put_between(text: str, name: str, lines: Iterable[str]) -> str:
    begin, end = marks(name)
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    assert found, f"no {begin} with {end} after it"
    return "\n".join((before + begin, *lines, end + after))
