"""A linear matmul that learns, in 8-bit floats: forward in e4m3, its gradients in e5m2, sums in float32.

Each tensor is divided by one scale, its largest size over the largest number that the type holds, found when
it is used. e4m3 has three bits after the point and holds 448; e5m2 has two and holds 57344: gradients need
the range more than the digits. What the weight becomes is made again for the backward pass, so that nothing
of it is kept (a sharded weight may be gone by then). On a GPU by torch's scaled matmul, elsewhere by the
same numbers in float32.
Shapes: L rows (tokens), I inputs, O outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.ops.fp8 import E4M3, LEAST_SCALE

E5M2 = torch.float8_e5m2
MULTIPLE = 16
"""Number that every side of a matmul is a multiple of, on a GPU."""


class Scaled8(NamedTuple):
    values: Tensor
    scale: Tensor
    """One number, float32."""

    def restored(self) -> Tensor:
        return self.values.float() * self.scale

    @property
    def t(self) -> Scaled8:
        """Laid out anew: matmuls want rows of one and columns of the other."""
        return Scaled8(self.values.t().contiguous(), self.scale)


def scaled(x: Tensor, dtype: torch.dtype) -> Scaled8:
    largest = torch.finfo(dtype).max
    scale = (x.abs().amax().float() / largest).clamp_min(LEAST_SCALE)
    return Scaled8((x.float() / scale).clamp(-largest, largest).to(dtype), scale)


def product(a_MK: Scaled8, b_NK: Scaled8, out: torch.dtype, *, fast: bool = False) -> Tensor:
    """[M, N]: rows of one with rows of the other. `fast` sums in fewer bits, which is good enough forward."""
    if not a_MK.values.is_cuda:
        with torch.autocast("cpu", enabled=False):
            return (a_MK.restored() @ b_NK.restored().t()).to(out)
    return torch._scaled_mm(
        a_MK.values,
        b_NK.values.t(),
        scale_a=a_MK.scale,
        scale_b=b_NK.scale,
        out_dtype=out,
        use_fast_accum=fast,
    )


class _Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_LI: Tensor, weight_OI: Tensor) -> Tensor:
        x8 = scaled(x_LI, E4M3)
        ctx.save_for_backward(weight_OI, *(x8 if ctx.needs_input_grad[1] else ()))
        return product(x8, scaled(weight_OI, E4M3), x_LI.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient_LO,) = gradients
        weight_OI, *x8 = ctx.saved_tensors
        gradient8 = scaled(gradient_LO, E5M2)
        of_x = None
        of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = product(gradient8, scaled(weight_OI, E4M3).t, gradient_LO.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = product(gradient8.t, Scaled8(*x8).t, weight_OI.dtype)
        return of_x, of_weight


def float8_product(x: Tensor, weight_OI: Tensor) -> Tensor:
    """`x` in bfloat16 or float32, its last dimension the inputs; so is what comes back. Rows are filled up
    with zeros to a multiple that a GPU takes."""
    x_LI = x.flatten(0, -2)
    filled = F.pad(x_LI, (0, 0, 0, -len(x_LI) % MULTIPLE))
    found: Tensor = _Float8Product.apply(filled, weight_OI)
    return found[: len(x_LI)].unflatten(0, x.shape[:-1])
