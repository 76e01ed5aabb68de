"""What `make quick` runs stays quick: one that is not marked `slow` starts no process, and the command line is built once."""

from __future__ import annotations

import multiprocessing.process
import subprocess
from functools import cache

import pytest
import typer.testing

typer.testing._get_command = cache(typer.testing._get_command)  # 75 ms for every command that is tried, else


@pytest.fixture(autouse=True)
def _no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("slow") is None:

        def refuse(*_: object, **__: object) -> None:
            pytest.fail("a quick test starts a process; mark it: pytest.mark.slow")

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
        monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
