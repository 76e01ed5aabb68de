"""What `make quick` runs stays quick: one that is not marked `slow` starts no process, files in which all are marked are not
imported, and the command line is built once."""

from __future__ import annotations

import multiprocessing.process
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import typer.testing

typer.testing._get_command = cache(typer.testing._get_command)  # 75 ms for every command that is tried, else

ALL_SLOW = re.compile(r"^pytestmark = pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A third of the files, and what only they import: torch's compiler, matplotlib. Every worker would import all of it."""
    unwanted = config.option.markexpr == "not slow" and collection_path.suffix == ".py"
    return True if unwanted and ALL_SLOW.search(collection_path.read_text()) else None


@pytest.fixture(autouse=True)
def _no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("slow") is None:

        def refuse(*_: object, **__: object) -> None:
            pytest.fail("a quick test starts a process; mark it: pytest.mark.slow")

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
        monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
