"""`millstream course` finds the course in a checkout, wherever it is called from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.commands import course
from millstream.commands.main import app


@pytest.mark.slow
def test_a_script_runs_on_ranks_from_another_folder(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "millstream", "course", "run", "1", "hello_distributed", "--predict", "2"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rank 1" in done.stdout


@pytest.mark.parametrize("words", [[], ["list"], ["run", "1"], ["check", "1"], ["quiz"]])
def test_a_package_without_a_checkout_says_where_the_course_is(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(course, "CHECKOUT", tmp_path)
    result = CliRunner().invoke(app, ["course", *words])
    assert result.exit_code == 2
    assert "clone the repository" in result.output.replace("\n", " ")
