"""Saying no to what cannot fit: before loading, from the planner's lower bound, and plainly if it happens later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from millstream.core.config import ModelSpec, StreamConfig
from millstream.core.errors import DeviceError
from millstream.planner.memory import memory_need

GIB = 2**30


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        available = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
        return 1024 * int(available[0].split()[1])
    except (OSError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_if_too_large(
    spec: ModelSpec, config: StreamConfig, device: torch.device, dtype: torch.dtype, *, with_text: bool
) -> None:
    need = memory_need(spec, config, value_bytes=dtype.itemsize, with_text=with_text).total_bytes
    free = free_bytes(device)
    if need > free:
        raise DeviceError(
            f"{spec.name} needs at least {need / GIB:.1f} GiB for this stream and {device} has {free / GIB:.1f} GiB free; "
            "try a smaller --size, --window or model"
        )


@contextmanager
def plain_out_of_memory() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise DeviceError(
            "the device ran out of memory; try a smaller --size, --window or model, or close other programs"
        ) from None
