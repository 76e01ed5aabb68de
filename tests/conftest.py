"""Shared by all tests: one thread, no network, a fixed seed."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton: kernels run in its interpreter


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
