"""Numbers on their way to host memory and back: asked for now, waited for when they are needed.

A GPU copies them itself, from or into pinned memory; on a CPU they are there already. Copies beside a
device's own work have a stream for each way, since one that waits for what it copies must not hold up the
other. A copy there begins at `ready`, when what was queued before is done; one back leaves `done`, which what
is queued afterwards waits for; no thread waits for either.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor


class HostCopy:
    """One tensor, as it is when all work queued so far is done."""

    def __init__(self, tensor: Tensor, *, beside: bool = False) -> None:
        """`beside`: on a stream of its own, so that what is queued from now on waits for no copy. Not for
        memory that a recorded call writes again: the tensor must stay as it is until it has been waited
        for."""
        self._here = self._there = tensor
        self._arrival: torch.cuda.Event | None = None
        if tensor.is_cuda:
            queued = torch.cuda.current_stream(tensor.device)
            stream = copying_stream(tensor.device, "there") if beside else queued
            if beside:
                ready = queued.record_event()
                stream.wait_event(ready)
            self._here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._arrival = torch.cuda.Event(blocking=beside)
            with torch.cuda.stream(stream):
                self._here.copy_(tensor, non_blocking=True)
                self._arrival.record(stream)

    def wait(self) -> Tensor:
        """In host memory."""
        if self._arrival is not None:
            self._arrival.synchronize()
        self._there = self._here  # no copy reads the device's memory any more
        return self._here


def brought(tensor: Tensor, device: torch.device) -> Tensor:
    """One of host memory on its way to a device, beside the work queued there; what is queued from now on
    finds it."""
    if device.type != "cuda":
        return tensor if tensor.device == device else tensor.to(device)
    stream = copying_stream(device, "back")
    consumer = torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        there = tensor.to(device, non_blocking=True)
        done = stream.record_event()
    consumer.wait_event(done)
    there.record_stream(
        consumer
    )  # made on another stream: its memory is the consumer's until that has read it
    return there


@cache
def copying_stream(device: torch.device, way: Literal["there", "back"]) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
