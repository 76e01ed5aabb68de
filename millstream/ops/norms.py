"""Norms that reduce in float32 and return the dtype they were given."""

from __future__ import annotations

from typing import Any

import torch
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
    length = (
        x_BCTHW.float().square().sum(dim=1, keepdim=True).clamp_min(1e-24).rsqrt() * x_BCTHW.shape[1] ** 0.5
    )
    return x_BCTHW * length.to(x_BCTHW.dtype) * weight


def sum_of_squares(x: Tensor) -> Tensor:
    """Sum the squares over the last dimension, which is kept, in float32."""
    squares: Tensor = _SumOfSquares.apply(x)
    return squares


def scaled(x: Tensor, by: Tensor, weight: Tensor) -> Tensor:
    """`x * by * weight` made in float32: a norm whose reduction was made apart."""
    product: Tensor = _Scaled.apply(x, by, weight)
    return product


class _SumOfSquares(torch.autograd.Function):
    """Keeps `x` for the way back, and not its float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.float().square().sum(dim=-1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (2 * gradient * x).to(x.dtype)


class _Scaled(torch.autograd.Function):
    """Keeps what it is given for the way back, and nothing in between."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, by, weight)
        return (x.float() * by * weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, by, weight = ctx.saved_tensors
        weighted = gradient.float() * weight
        of_weight = (gradient.float() * x * by).flatten(0, -2).sum(dim=0)
        return (
            (weighted * by).to(x.dtype),
            (weighted * x).sum(dim=-1, keepdim=True),
            of_weight.to(weight.dtype),
        )
