"""Rows of step after step, made ahead by a thread and brought to the device while the step before them
computes.

Its state is one number, the next step: what a step learns from is a function of it. On a GPU rows are copied
from pinned memory on a stream of their own, so that neither the thread nor the computation waits for the
copy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from millstream.train.distil.training_rows import ClipBatch
from millstream.train.parallel.task import FlowRows

Rows = FlowRows | ClipBatch

AHEAD = 2
"""Number of steps whose rows are made before they are asked for: fast ones make up for a slow one."""


class ReadyRows(NamedTuple):
    rows: Rows
    arrived: torch.cuda.Event | None
    """Event after which the rows are on the device; None where there is nothing to wait for."""


class RowLoader:
    def __init__(self, make: Callable[[int], Rows], device: torch.device, *, position: int) -> None:
        """`make` returns a step's rows in host memory; it is called by one thread at a time, in the order of
        steps."""
        self._make = make
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._coming: deque[Future[ReadyRows]] = deque()
        self.waited_s = 0.0
        """Seconds that calls of `next` have waited so far."""
        self.seek(position)

    def __enter__(self) -> RowLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    @property
    def position(self) -> int:
        """Step whose rows come next."""
        return self._position

    def seek(self, position: int) -> None:
        """Go on from another step, with the rows that `make` returns now."""
        assert position >= 0, f"rows of step {position}"
        for future in self._coming:
            future.cancel()
        self._coming.clear()
        self._position = position
        for step in range(position, position + AHEAD):
            self._coming.append(self._thread.submit(self._ready, step))

    def next(self) -> Rows:
        begun = time.perf_counter()
        self._coming.append(self._thread.submit(self._ready, self._position + AHEAD))
        ready = self._coming.popleft().result()
        self._position += 1
        if ready.arrived is not None:
            compute = torch.cuda.current_stream(self._device)
            compute.wait_event(ready.arrived)
            for tensor in filter(torch.is_tensor, ready.rows):
                tensor.record_stream(
                    compute
                )  # made on another stream: its memory is this one's until that is done
        self.waited_s += time.perf_counter() - begun
        return ready.rows

    def _ready(self, step: int) -> ReadyRows:
        rows = self._make(step)
        if self._stream is None:
            return ReadyRows(_moved(rows, lambda tensor: tensor.to(self._device)), None)
        with torch.cuda.stream(self._stream):
            there = _moved(rows, lambda tensor: tensor.pin_memory().to(self._device, non_blocking=True))
            return ReadyRows(there, self._stream.record_event())


def _moved(rows: Rows, move: Callable[[Tensor], Tensor]) -> Rows:
    """Return the rows with all their tensors moved."""
    moved: dict[str, Any] = {
        name: move(each) for name, each in rows._asdict().items() if isinstance(each, Tensor)
    }
    return rows._replace(**moved)
