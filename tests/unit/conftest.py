"""What `make quick` runs stays quick: a test that is not marked `slow` starts no process."""

from __future__ import annotations

import multiprocessing.process
import subprocess

import pytest


@pytest.fixture(autouse=True)
def _no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("slow") is None:

        def refuse(*_: object, **__: object) -> None:
            pytest.fail("a quick test starts a process; mark it: pytest.mark.slow")

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
        monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
