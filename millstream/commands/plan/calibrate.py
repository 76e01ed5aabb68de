"""`millstream plan calibrate`: measure this machine and write the profile that plans use from then on.

Matmuls, attention, convolutions, copies, launches, and collectives between its ranks; each warmed up, then
the best of several runs, because what else runs here only ever adds time. Matmuls and attention on a GPU are
the exception: they run in a row, because a card that is kept busy is held to its power limit. On a processor
also how our own networks use it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.commands.memory import free_bytes
from millstream.commands.plan.collectives import fit_link
from millstream.commands.plan.fit import fit_software
from millstream.commands.report import header
from millstream.core.config import GIB
from millstream.core.files import Staging
from millstream.engine.device_choice import choose_device
from millstream.ops.attention import KEY_MULTIPLE, attend
from millstream.ops.fp8 import quantise
from millstream.ops.linear import linear_rows
from millstream.ops.precision import cpu_has_bfloat16
from millstream.planner.hardware import DEVICES, Device, Rates, named_by_driver
from millstream.planner.profile import profile_text
from millstream.planner.time import head_share

THIN = (8, 16, 32, 64)
"""Channels of deep convolutions that a processor is measured at."""
_SIDE = 2048
"""Rows of their pictures, times channels."""
_RUNS = 7
_SECONDS = 0.5
"""Each measurement goes on at least this long: what else runs here comes in bursts."""


Clock = Callable[[], float]


@dataclass(frozen=True)
class Timer:
    on: torch.device
    clock: Clock

    @torch.inference_mode()
    def best_s(self, run: Callable[[], Any]) -> float:
        for _ in range(2):
            run()
        seconds: list[float] = []
        while len(seconds) < _RUNS or sum(seconds) < _SECONDS:
            self._wait()
            begin = self.clock()
            run()
            self._wait()
            seconds.append(self.clock() - begin)
        return min(seconds)

    @torch.inference_mode()
    def sustained_s(self, run: Callable[[], Any]) -> float:
        """Measure the seconds of a run; on a GPU, of one among many in a row."""
        one = self.best_s(run)
        if self.on.type != "cuda":
            return one
        count = math.ceil(_SECONDS / one)
        begin = self.clock()
        for _ in range(count):
            run()
        self._wait()
        return (self.clock() - begin) / count

    def _wait(self) -> None:
        if self.on.type == "cuda":
            torch.cuda.synchronize(self.on)


def calibrate(*, device_name: str, out: Path, clock: Clock = time.perf_counter) -> Device:
    """The machine as measured; also written to `out`. On one thread, `time.process_time` does not see who
    else is running."""
    on = choose_device(device_name)
    base = _known(on)
    device = replace(base, measured=_rates(Timer(on, clock), base), link=fit_link(on) or base.link)
    if device.processor:
        device = replace(device, fitted=fit_software(device, clock))
    with Staging(out.parent) as staging:
        staging.path(out.name).write_text(profile_text(device, header()))
    return device


def _known(on: torch.device) -> Device:
    """The catalogue's entry for this device, with the memory that is really here."""
    if on.type == "cpu":
        quick = 2 if cpu_has_bfloat16() else 4
        return replace(
            DEVICES["laptop-cpu"], name="this-cpu", memory_gib=free_bytes(on) / GIB, value_bytes=quick
        )
    name = torch.cuda.get_device_name(on)
    properties = torch.cuda.get_device_properties(on)
    base = named_by_driver(name) or replace(DEVICES["h100"], name=name.lower().replace(" ", ""))
    return replace(
        base, memory_gib=properties.total_memory / GIB, multiprocessors=properties.multi_processor_count
    )


def _rates(timer: Timer, base: Device) -> Rates:
    big = timer.on.type == "cuda"
    dtype = torch.bfloat16 if base.value_bytes == 2 else torch.float32
    widths = (96, 192, 384) if big else (32, 64, 128)
    return Rates(
        matmul_tflops=_matmul(timer, dtype, 8192 if big else 1024),
        fp8_tflops=_fp8(timer, 8192) if big and base.fp8_tflops is not None else None,
        attention_tflops=_attention(timer, dtype, base, queries=4680 if big else 768, heads=40 if big else 4),
        conv_tflops=tuple((width, _convolution(timer, dtype, width, deep=big)) for width in widths),
        deep_conv_tflops=()
        if big
        else tuple((width, _convolution(timer, dtype, width, deep=True)) for width in THIN),
        bandwidth_tb_s=_bandwidth(timer, 1 << (30 if big else 26)),
        launch_us=_launch(timer),
    )


def _matmul(timer: Timer, dtype: torch.dtype, size: int) -> float:
    a, b = (torch.randn(size, size, device=timer.on, dtype=dtype) for _ in range(2))
    return 2 * size**3 / timer.sustained_s(lambda: a @ b) / 1e12


def _fp8(timer: Timer, size: int) -> float:
    """Measure fp8 matmuls as fast blocks run them, with a scale a row."""
    a, b = (quantise(torch.randn(size, size, device=timer.on)) for _ in range(2))
    bias = torch.zeros(size, device=timer.on, dtype=torch.bfloat16)
    return 2 * size**3 / timer.sustained_s(lambda: linear_rows(a, b, bias)) / 1e12


def _attention(timer: Timer, dtype: torch.dtype, base: Device, *, queries: int, heads: int) -> float:
    """Measure attention over a round number of keys, as if the last wave were full: `time.py` applies the
    wave's share to it."""
    width = 128 if heads > 4 else 64
    keys = -(-3 * queries // KEY_MULTIPLE) * KEY_MULTIPLE
    q = torch.randn(1, queries, heads, width, device=timer.on, dtype=dtype)
    k, v = (torch.randn(1, keys, heads, width, device=timer.on, dtype=dtype) for _ in range(2))
    reached = 4 * queries * keys * heads * width / timer.sustained_s(lambda: attend(q, k, v)) / 1e12
    return reached / head_share(queries, heads, base)


def _convolution(timer: Timer, dtype: torch.dtype, width: int, *, deep: bool) -> float:
    """At a size that shrinks as channels grow, as in a decoder: `deep` over time too as Wan's are, else as
    Brook's."""
    size: tuple[int, ...]
    if deep and timer.on.type == "cuda":
        size = (1, width, 12, 480 * 96 // width, 832 * 96 // width)
        order = torch.channels_last_3d
    elif deep:
        size = (1, width, 12, _SIDE // width, _SIDE // width)
        order = torch.contiguous_format
    else:
        size = (12, width, 4096 // width, 4096 // width)
        order = torch.channels_last
    x = torch.randn(size, device=timer.on, dtype=dtype).contiguous(memory_format=order)
    weight = torch.randn(width, width, *(3,) * (len(size) - 2), device=timer.on, dtype=dtype).contiguous(
        memory_format=order
    )
    convolve = F.conv3d if deep else F.conv2d
    seconds = timer.best_s(lambda: convolve(x, weight, padding=1))
    return 2 * weight[0, 0].numel() * width * x.numel() / seconds / 1e12


def _bandwidth(timer: Timer, size: int) -> float:
    """Read and write both count."""
    source = torch.zeros(size, dtype=torch.uint8, device=timer.on)
    target = torch.empty_like(source)
    return 2 * size / timer.best_s(lambda: target.copy_(source)) / 1e12


def _launch(timer: Timer) -> float:
    x = torch.zeros(1, device=timer.on)
    count = 1000

    def launches() -> Tensor:
        for _ in range(count):
            x.add_(1)
        return x

    return timer.best_s(launches) / count * 1e6
