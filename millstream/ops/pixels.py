"""Pixels as networks see them, in [-1, 1], and as people's files hold them, in bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def to_bytes(pixels: Tensor) -> Tensor:
    """uint8 in the same layout. Values outside [-1, 1] are clamped; the input is left as it is."""
    return pixels.to(torch.float32, copy=True).add_(1.0).mul_(127.5).round_().clamp_(0, 255).to(torch.uint8)


def from_bytes(pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return pixels.to(dtype) / 127.5 - 1.0
