"""Triton: one word of memory set to zero, for graphs that would do it with a memset."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _zero_word(word):
    tl.store(word, 0)


def built_zero_word(device: torch.device) -> Any:
    """The kernel, compiled and loaded: `function` is the driver's handle of it, its one argument an
    address."""
    return _zero_word[(1,)](torch.zeros(1, dtype=torch.int32, device=device), num_warps=1)
