"""How much memory this process uses: on a GPU what torch has allocated, on a CPU all of the process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch


def bytes_in_use(device: torch.device) -> int:
    """Return the bytes in use by this process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    statm = Path("/proc/self/statm")
    return (
        int(statm.read_text().split()[1]) * resource.getpagesize()
        if statm.exists()
        else most_bytes_in_use(device)
    )


def most_bytes_in_use(device: torch.device) -> int:
    """Return the most bytes in use by this process at any time so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
