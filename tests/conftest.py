"""Shared by all tests: one thread, no network, a fixed seed, no deadlines, logging as it was."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Generator, Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # of this process and those it starts

import signal

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton: kernels run in its interpreter


settings.register_profile("untimed", deadline=None)  # a machine may be busy
settings.load_profile("untimed")

# pytest would write down two lines of it for every tensor of a checkpoint: a fifth of the time that takes
logging.getLogger("c10d-NullHandler-dcp_logger").disabled = True

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell that starts tests in the background has Ctrl-C ignored, and so would every process that they start."""


LONGEST = ("test_train_commands", "test_bundled", "test_plan_calibrate", "test_ablation_source", "test_training_checkpoints")
"""Files that take minutes. First of all, so that of several workers one begins with them and nobody takes them from it."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported by then lives on: nobody looks for garbage in it, now or between tests."""
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
    assert logging.getLogger().handlers == handlers, "handlers stay, and their stream is closed when the next test logs"
