"""Memory of a device: how much there is, how much is used and how much is needed. What cannot fit is refused
before loading, from the planner's lower bound, and said plainly if it happens later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from millstream.core.config import GIB, ModelSpec, StreamConfig
from millstream.core.errors import DeviceError
from millstream.core.speed import Speed
from millstream.planner.memory import memory_need, packed_bytes
from millstream.planner.peaks import vae_state_bytes

TextPlace = Literal["held", "visiting", "none"]
"""Place of a text encoder: it stays on the device, is gone before the first window is made, or is too small
to count."""


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        available = [
            line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")
        ]
        return 1024 * int(available[0].split()[1])
    except (OSError, IndexError):
        return total_bytes(device)


def total_bytes(device: torch.device) -> int:
    """Count the device's bytes, free or not."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def session_bytes(spec: ModelSpec, config: StreamConfig, dtype: torch.dtype, speed: Speed) -> int:
    """Count the bytes that a session is declared to hold on the device: its window, its prompt and the VAE's
    past."""
    need = memory_need(spec, config, value_bytes=dtype.itemsize)
    packed = packed_bytes(spec.dit, config) if speed.low_attention else 0
    return (
        need.window_bytes
        + packed
        + need.prompt_bytes
        + vae_state_bytes(spec.vae, config, value_bytes=dtype.itemsize)
    )


def refuse_if_too_large(
    spec: ModelSpec, config: StreamConfig, device: torch.device, dtype: torch.dtype, *, text: TextPlace
) -> None:
    need = least_bytes(spec, config, dtype, text=text)
    free = free_bytes(device)
    if need > free:
        raise DeviceError(
            f"{spec.name} needs at least {need / GIB:.1f} GiB for this stream and {device} has "
            f"{free / GIB:.1f} GiB free; "
            "try a smaller --size, --window or model"
        )


def least_bytes(spec: ModelSpec, config: StreamConfig, dtype: torch.dtype, *, text: TextPlace) -> int:
    """Count the bytes of one stream, at the moment that takes most."""
    with_text, without = (
        memory_need(spec, config, value_bytes=dtype.itemsize, with_text=each) for each in (True, False)
    )
    match text:
        case "held":
            return with_text.total_bytes
        case "visiting":
            return max(with_text.weight_bytes, without.total_bytes)
        case "none":
            return without.total_bytes


@contextmanager
def plain_out_of_memory() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise DeviceError(
            "the device ran out of memory; try --offload-text, a smaller --size, --window or model, or close "
            "other programs"
        ) from None
