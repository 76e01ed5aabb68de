"""The extras of the package: what docs/install.md lists, and what messages and pages tell people to
install."""

from __future__ import annotations

import re
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ROW = re.compile(r"^\| `([a-z]+)` \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"millstream\[([a-z,]+)\]")


def rows() -> dict[str, str]:
    """Each extra in the table, and what it is for."""
    page = (ROOT / "docs" / "install.md").read_text()
    table = page[page.index("| extra | for |") :].partition("\n\n")[0]
    return dict(ROW.findall(table))


def test_the_table_of_extras_has_every_one_and_no_other() -> None:
    assert sorted(rows()) == sorted(EXTRAS)


def test_an_extra_that_brings_another_says_so() -> None:
    found = rows()
    brings = {name: {other for need in needs for other in _named(need)} for name, needs in EXTRAS.items()}
    assert [
        (name, other)
        for name, others in brings.items()
        for other in others
        if f"`{other}`" not in found[name]
    ] == []
    assert brings["serve"] == {"client"}


def test_what_people_are_told_to_install_is_an_extra() -> None:
    told = [*(ROOT / "millstream").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    named = {extra for path in told for extra in _named(path.read_text())}
    assert "serve" in named
    assert named <= set(EXTRAS)


def _named(text: str) -> list[str]:
    return [extra for extras in NAMED.findall(text) for extra in extras.split(",")]
