"""Numbers on their way to host memory: asked for now, waited for when they are needed.

A GPU writes them itself, into pinned memory, behind the work queued before; on a CPU they are there already.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


class HostCopy:
    """One tensor, as it is when all work queued so far is done."""

    def __init__(self, tensor: Tensor, *, beside: bool = False) -> None:
        """`beside`: on a stream of its own, so that what is queued from now on waits for no copy. Not for memory that a
        recorded call writes again: the tensor must stay as it is until it has been waited for."""
        self._here = self._there = tensor
        self._arrival: torch.cuda.Event | None = None
        if tensor.is_cuda:
            queued = torch.cuda.current_stream(tensor.device)
            stream = _copying_stream(tensor.device) if beside else queued
            if beside:
                stream.wait_stream(queued)
            self._here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._arrival = torch.cuda.Event(blocking=beside)
            with torch.cuda.stream(stream):
                self._here.copy_(tensor, non_blocking=True)
                self._arrival.record(stream)

    def wait(self) -> Tensor:
        """In host memory."""
        if self._arrival is not None:
            self._arrival.synchronize()
        self._there = self._here  # nobody copies from the device's memory any more
        return self._here


@cache
def _copying_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
