"""Real traces of a GPU: the bottleneck that was put there is named. Skipped without one, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from millstream.core.trace import NOBODY
from millstream.generation.stopwatch import Stopwatch
from millstream.profiler.reading import read

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def products() -> None:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(20):
        a @ a


def walks() -> None:
    a = torch.ones(256 << 20, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    for _ in range(40):
        torch.add(a, a, out=out)


def tiny_kernels() -> None:
    x = torch.ones(64, device="cuda")
    for _ in range(800):
        x.mul_(1.0)


def python_between() -> None:
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    for _ in range(60):
        sum(number * number for number in range(20_000))
        a @ a


def numbers_brought_back() -> None:
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    for _ in range(60):
        for _ in range(3):
            b = a @ a
        b[0, 0].item()


STEPS = {
    "compute-bound": products,
    "memory-bound": walks,
    "launch-bound": tiny_kernels,
    "CPU-bound": python_between,
    "synchronisation": numbers_brought_back,
}
"""By what each is bound by."""


def capture(step: Callable[[], None], path: Path) -> Path:
    """A trace of the second time: the first one loads kernels. Packed if the name says so."""
    step()
    torch.cuda.synchronize()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True, acc_events=True
    ) as profiler:
        step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    return path


@pytest.mark.parametrize("expected", STEPS)
def test_a_real_bottleneck_is_named(tmp_path: Path, expected: str) -> None:
    verdict = read([capture(STEPS[expected], tmp_path / "trace.json")]).diagnosis.verdict
    assert verdict.name == expected, verdict


def test_device_events_time_spans_without_waiting() -> None:
    watch = Stopwatch(torch.device("cuda"), rank=2)
    a = torch.randn(4096, 4096, device="cuda")
    with watch.span("step"):
        for _ in range(10):
            a @ a
    phases = watch.lap()
    (span,) = watch.spans
    assert span.ms == phases["step"] > 0
    assert (span.rank, span.work) == (2, NOBODY)
