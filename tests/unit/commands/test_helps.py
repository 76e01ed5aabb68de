"""Every `--help` of the command line, those of groups too: a version of typer or click that breaks one is
named here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from millstream.commands.main import app


def paths(command: object, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words before `--help`: of the program, its groups and its commands."""
    yield above
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, (*above, name))


PATHS = tuple(paths(typer.main.get_command(app)))


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_is_shown(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"], prog_name="millstream")
    assert result.exit_code == 0, result.exception
    usage = next(line for line in result.output.splitlines() if line.strip())
    assert usage.split()[: 2 + len(path)] == ["Usage:", "millstream", *path]


def test_groups_and_what_lies_in_them_are_among_them() -> None:
    assert {(), ("train",), ("train", "data"), ("serve",)} <= set(PATHS)
