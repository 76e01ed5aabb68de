"""Tables that a command writes into a page of docs/, between two marks that bear the command's name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} begins -->", f"<!-- {name} ends -->"


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_between(page: Path, name: str, lines: Iterable[str]) -> None:
    """In the place of what was there."""
    page.write_text(put_between(page.read_text(), name, lines))


def put_between(text: str, name: str, lines: Iterable[str]) -> str:
    begin, end = marks(name)
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    assert found, f"no {begin} with {end} after it"
    return "\n".join((before + begin, *lines, end + after))
