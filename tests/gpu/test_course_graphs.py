"""What the course shows on a GPU: a decode step as a CUDA graph, and weights copied on the device."""

from __future__ import annotations

import pytest
import torch

from course.chapters.cpu_overhead.cuda_graphs import eager_step, recorded_step, written
from course.chapters.rl_system.weight_update import on_a_gpu
from course.tinylm.training import fresh

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_recorded_step_writes_what_the_step_itself_does() -> None:
    gpu = torch.device("cuda")
    lm = fresh().to(gpu).requires_grad_(requires_grad=False)
    for rows in (1, 8):
        assert written(recorded_step(lm, rows, gpu)) == written(eager_step(lm, rows, gpu))


def test_copies_on_a_device_are_measured() -> None:
    assert "in place" in on_a_gpu(1e8)
