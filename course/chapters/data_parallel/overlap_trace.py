"""Sums that travel while the backward pass goes on with earlier layers: seen in the engine's record, and in a
trace if you ask.

Every layer's backward pass sleeps a little, so that there is something to hide the sums behind on any
machine.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from course.chapters.data_parallel.small_model import loss_of, make_rows
from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks
from millstream.train.parallel.groups import create_world
from millstream.train.parallel.replicas import Replicas

WIDTH = 512


class StepTimes(NamedTuple):
    """Milliseconds since the backward pass began."""

    sums_began: list[float]
    backward_ended: float
    step_ended: float


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class SlowLayer(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(SlowBackward.apply(x, self.seconds))
        return y


def run(reader: Reader, layers: int = 5, sleep: float = 0.05, trace: str = "") -> None:
    """`trace`: a file for rank 0's trace, to be opened in Perfetto or chrome://tracing."""
    guess = reader.predict(
        f"{layers} layers, a bucket each. How many sums have begun before the backward pass is over?"
    )
    waited, overlapped = (
        on_ranks(timed_step, 2, layers, sleep, overlap, trace)[0] for overlap in (False, True)
    )
    early = sum(began < overlapped.backward_ended for began in overlapped.sums_began)
    reader.reveal(
        guess,
        early,
        by="counted by the engine's record: each bucket's sum begins when its gradients are there",
    )
    assert early == layers == len(overlapped.sums_began), f"{overlapped}"
    assert not any(began < waited.backward_ended for began in waited.sums_began), f"{waited}"
    for name, times in (("all sums after the pass", waited), ("sums while it goes on", overlapped)):
        begins = " ".join(f"{began:4.0f}" for began in times.sums_began)
        reader.measured(
            f"{name:24} sums began at {begins} ms; pass over at {times.backward_ended:.0f}, step at "
            f"{times.step_ended:.0f}"
        )
    reader.say("the last bucket is that of the first layer: nothing is left to hide it behind")
    if trace:
        reader.measured(f"wrote {trace}; look for the all-reduces beside the backward pass")


def timed_step(rank: int, world: int, layers: int, sleep: float, overlap: bool, trace: str) -> StepTimes:
    torch.manual_seed(0)
    model = nn.Sequential(*(SlowLayer(sleep) for _ in range(layers)))
    group = create_world()
    replicas = Replicas(model, group, bucket_bytes=4 * WIDTH * (WIDTH + 1))
    loss = loss_of(model, make_rows(width=WIDTH))
    profiled = bool(trace) and rank == 0 and overlap
    with profile(activities=[ProfilerActivity.CPU]) if profiled else nullcontext() as profiler:
        begin = time.monotonic()
        with nullcontext() if overlap else replicas.no_sync():
            loss.backward()
        backward_ended = time.monotonic()
        replicas.finish()
        step_ended = time.monotonic()
    if profiler is not None:
        profiler.export_chrome_trace(trace)
    began = [1e3 * (called.started_at - begin) for called in group.record.last if called.what == "gradients"]
    return StepTimes(began, 1e3 * (backward_ended - begin), 1e3 * (step_ended - begin))
