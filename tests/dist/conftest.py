"""One server that all processes of these tests are forked from, with everything imported that takes long."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.forkserver import ensure_running

import pytest

from millstream.mesh.processes import COMPILER, PRELOADED
from tests.dist.ranks import end_kept_ranks

SLOW = [
    COMPILER,
    "pytest",
    "hypothesis",
    "tests.unit.models_for_tests",
    "tests.soak.train_equality",
    "fsspec.implementations.local",
]


@pytest.fixture(scope="session", autouse=True)
def _warm_server() -> None:
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *SLOW])
    ensure_running()


@pytest.fixture(scope="module", autouse=True)
def _nobody_stays_longer() -> Iterator[None]:
    yield
    end_kept_ranks()
