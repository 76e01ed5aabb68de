"""The doctor's table of versions against `pyproject.toml` and against what is installed."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from millstream.commands.doctor.versions import PACKAGES, PackageBounds, release

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OLDER_PYTHONS = {"tomli"}
"""Asked for where Python has none of its own: the doctor need not know it."""


def bounds_of(requirements: list[str]) -> dict[str, SpecifierSet]:
    """Collect the bounds of each package from all requirements that name it."""
    found: dict[str, SpecifierSet] = {}
    for requirement in map(Requirement, requirements):
        if requirement.name != PROJECT["name"] and requirement.name not in OLDER_PYTHONS:
            found[requirement.name] = found.get(requirement.name, SpecifierSet()) & requirement.specifier
    return found


def test_every_bound_of_what_runs_and_serves_is_the_tables() -> None:
    needed = bounds_of(PROJECT["dependencies"])
    serving = bounds_of([*EXTRAS["client"], *EXTRAS["serve"]])
    assert {package.name for package in PACKAGES if not package.extra} == set(needed)
    assert {package.name for package in PACKAGES if package.extra == "serve"} == set(serving)
    for package in PACKAGES:
        asked = {**needed, **serving}[package.name]
        assert str(package.since) in {each.version for each in asked if each.operator == ">="}, package.name
        assert {package.before} - {""} == {each.version for each in asked if each.operator == "<"}, (
            package.name
        )


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_what_is_installed_is_a_version_that_works(package: PackageBounds) -> None:
    installed = version(package.name)
    assert not package.fault(installed)
    assert SpecifierSet(package.bounds).contains(installed)


@pytest.mark.parametrize("given", ["2.11", "2.11.0", "2.11.0+cu130", "2.11.0rc1"])
def test_a_version_is_ordered_by_its_numbers(given: str) -> None:
    assert release(given) == (2, 11)
    assert release("2.9.1") < release(given) < release("2.11.1")
