"""What the README says is so: its example runs, its commands exist, and CI runs its test command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs() -> None:
    at_a_server = (
        ROOT / "docs" / "client.md"
    ).read_text()  # its examples are run by tests/server/test_client.py
    (example,) = (
        code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if code not in at_a_server
    )
    assert example.count("chunks=8") == 1
    shorter = example.replace("chunks=8", "chunks=4")  # to where its control applies
    done = subprocess.run(
        [sys.executable, "-c", shorter], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("0 (9, 256, 256, 3)")
    assert "applied" in lines[3]


def test_its_two_commands_are_targets_and_ci_runs_the_second() -> None:
    commands = re.findall(r"^make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert len(commands) == 2
    assert all(re.search(rf"^{command}:", makefile, re.MULTILINE) for command in commands)
    assert f"make {commands[1]}" in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_file_and_link_it_names_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_structure_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "structure.md").read_text()
    for name in set(
        re.findall(
            r"`((?:client|commands|core|engine|generation|load|mesh|models|ops|parallel|planner|profiler|server|serving|session|train|video|wire)/[\w/]+\.py)`",
            text,
        )
    ):
        assert (ROOT / "millstream" / name).exists(), name
