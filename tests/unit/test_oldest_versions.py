"""The oldest versions that `make test-oldest` installs, against `pyproject.toml`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.oldest_versions import oldest_versions
from tests.unit.commands.test_versions import PROJECT, bounds_of

ROOT = Path(__file__).parents[2]
ASKED = {
    "dependencies": ["torch>=2.11", "av>=17.1,<20", "tomli>=2; python_version < '3.11'"],
    "optional-dependencies": {
        "client": ["websockets>=9"],
        "serve": ["tool[client]", "websockets>=10,<18"],
        "unbound": ["tool[client]", "ray"],
    },
    "name": "tool",
}


def test_each_package_gets_its_oldest_version_and_of_two_bounds_the_higher_one() -> None:
    assert oldest_versions(ASKED, ["serve"]) == [
        "av==17.1",
        "tomli==2; python_version < '3.11'",
        "websockets==10",
    ]
    with pytest.raises(AssertionError, match="ray has no oldest version"):
        oldest_versions(ASKED, ["unbound"])


def test_the_projects_oldest_versions_are_within_their_bounds() -> None:
    extras = PROJECT["optional-dependencies"]
    asked = bounds_of([*PROJECT["dependencies"], *extras["client"], *extras["serve"]])
    oldest = {each.name: each.specifier for each in map(Requirement, oldest_versions(PROJECT, ["serve"]))}
    assert set(oldest) - {"tomli"} == set(asked) - {"torch"}, "torch is the tested one"
    for name, bounds in asked.items():
        assert name == "torch" or all(bounds.contains(each.version) for each in oldest[name])


def test_every_test_that_other_packages_are_held_to_exists() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (names,) = re.findall(r"^SERVING_TESTS := \$\(addprefix tests/,(.+)\)$", makefile, flags=re.MULTILINE)
    assert [name for name in names.split() if not (ROOT / "tests" / name).exists()] == []
