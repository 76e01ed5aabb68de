"""Numbers on their way to host memory: asked for now, waited for when they are needed.

A GPU writes them itself, into pinned memory, behind the work queued before; on a CPU they are there already.
"""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """One tensor, as it is when all work queued so far is done."""

    def __init__(self, tensor: Tensor) -> None:
        self._here = tensor
        self._arrival: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._here.copy_(tensor, non_blocking=True)
            self._arrival = torch.cuda.Event()
            self._arrival.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> Tensor:
        """In host memory."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._here
