"""Times named phases: by the host's clock on a CPU, by device events on a GPU, so that timing never waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Spans of the same name add up until `lap` returns them and starts over."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._host_ms: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        if self._on_gpu:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self._events.append((name, begin, end))
        else:
            begun = time.perf_counter()
            yield
            self._add(name, 1000.0 * (time.perf_counter() - begun))

    def lap(self) -> dict[str, float]:
        """Milliseconds per phase since the last lap. Waits for the device if its last span has not ended."""
        if self._events:
            self._events[-1][2].synchronize()
        for name, begin, end in self._events:
            self._add(name, begin.elapsed_time(end))
        phases, self._host_ms, self._events = self._host_ms, {}, []
        return phases

    def _add(self, name: str, ms: float) -> None:
        self._host_ms[name] = self._host_ms.get(name, 0.0) + ms
