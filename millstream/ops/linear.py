"""Linear matmuls that do more than multiply: in e4m3, or with the activation at their end.

Shapes: L rows (tokens), I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.ops.fp8 import Rows8


def linear_rows(x: Rows8, weight: Rows8, bias_O: Tensor, out: Tensor | None = None) -> Tensor:
    """[L, O] in the bias's dtype, in `out` if there is one. `weight` has a row for each output."""
    if not x.values_LI.is_cuda:
        found = F.linear(x.restored(), weight.restored(), bias_O.float()).to(bias_O.dtype)
        return found if out is None else out.copy_(found)
    return torch._scaled_mm(
        x.values_LI,
        weight.values_LI.t(),
        scale_a=x.scales_L1,
        scale_b=weight.scales_L1.t(),
        bias=bias_O,
        out_dtype=bias_O.dtype,
        use_fast_accum=True,
        out=out,
    )


def linear_gelu(x_LI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """GELU (tanh) of the matmul; on a GPU the matmul's own last step."""
    if x_LI.is_cuda:
        return torch._addmm_activation(bias_O, x_LI, weight_OI.t(), use_gelu=True)
    return F.gelu(F.linear(x_LI, weight_OI, bias_O), approximate="tanh")
