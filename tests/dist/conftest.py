"""One server that all processes of these tests are forked from, with everything imported that takes long."""

from __future__ import annotations

import multiprocessing
from multiprocessing.forkserver import ensure_running

import pytest

from millstream.mesh.processes import COMPILER, PRELOADED

SLOW = [
    COMPILER,
    "pytest",
    "hypothesis",
    "tests.unit.models_for_tests",
    "benchmarks.train_equality",
    "fsspec.implementations.local",
]


@pytest.fixture(scope="session", autouse=True)
def _warm_server() -> None:
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *SLOW])
    ensure_running()
