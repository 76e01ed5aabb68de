"""Norms that reduce in float32 and return the dtype they were given."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def layer_norm(x: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Layer norm over the last dimension, affine if given weights."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def channel_norm(x_BCTHW: Tensor, weight: Tensor) -> Tensor:
    """Norm of each pixel's channel vector to length sqrt(C), scaled by `weight` (shaped [C, 1, ...])."""
    length = x_BCTHW.float().square().sum(dim=1, keepdim=True).clamp_min(1e-24).rsqrt() * x_BCTHW.shape[1] ** 0.5
    return x_BCTHW * length.to(x_BCTHW.dtype) * weight
