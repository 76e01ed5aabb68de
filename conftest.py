"""Shared by all tests: one thread, no network, a fixed seed, no deadlines, logging as it was.

`make quick` stays quick: in the folders that it runs, a test that is not marked `slow` starts no process,
files in which all are marked are not imported, and the command line is built once.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing.process
import os
import re
import subprocess
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # of this process and those it starts

import signal

import pytest
import torch
import typer.testing
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault(
        "TRITON_INTERPRET", "1"
    )  # before anything imports Triton: kernels run in its interpreter


settings.register_profile("untimed", deadline=None)  # a machine may be busy
settings.load_profile("untimed")

# pytest would write down two lines of it for every tensor of a checkpoint: a fifth of the time that takes
logging.getLogger("c10d-NullHandler-dcp_logger").disabled = True

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell that starts tests in the background has Ctrl-C ignored, and so would every process that they
start."""


typer.testing._get_command = cache(typer.testing._get_command)  # 75 ms for every command that is tried, else

QUICK = tuple(Path(__file__).parent / folder for folder in ("tests/unit", "benchmarks/checks"))
"""Folders that `make quick` runs."""
ALL_SLOW = re.compile(r"^pytestmark = pytest\.mark\.slow\b", re.MULTILINE)

LONGEST = (
    "test_train_commands",
    "test_bundled",
    "test_plan_calibrate",
    "test_ablation_source",
    "test_training_checkpoints",
)
"""Files that take minutes. First of all, so that of several workers one begins with them and nobody takes
them from it."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze all objects that imports made: the garbage collector skips them, now and between tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries that count what is left at the end find it gone


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    handlers = logging.getLogger().handlers.copy()
    yield
    assert logging.getLogger().handlers == handlers, (
        "handlers stay, and their stream is closed when the next test logs"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip a third of the files in a quick run, and what only they import: every worker would import all of
    it."""
    unwanted = config.option.markexpr == "not slow" and collection_path.suffix == ".py"
    return True if unwanted and ALL_SLOW.search(collection_path.read_text()) else None


@pytest.fixture(autouse=True)
def _no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if (
        any(folder in request.path.parents for folder in QUICK)
        and request.node.get_closest_marker("slow") is None
    ):

        def refuse(*_: object, **__: object) -> None:
            pytest.fail("a quick test starts a process; mark it: pytest.mark.slow")

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
        monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
