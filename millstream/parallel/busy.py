"""Time that a device was busy with something, over many short stretches. Never waits for the device before it
is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

UNREAD = 1024
"""Stretches on a GPU whose length has not been read; one more reads them all, which waits for the device."""


class BusyTime:
    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._unread: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def measured(self) -> Iterator[None]:
        if not self._on_gpu:
            begun = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begun
            return
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        yield
        end.record()
        self._unread.append((begin, end))
        if len(self._unread) > UNREAD:
            self._read()

    def lap(self) -> float:
        """Seconds since the last lap."""
        self._read()
        seconds = self._seconds
        self._seconds = 0.0
        return seconds

    def _read(self) -> None:
        for begin, end in self._unread:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1000.0
        self._unread.clear()
