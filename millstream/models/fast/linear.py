"""A linear layer for the fast path: several layers' outputs in one product, in the model's dtype or in e4m3.

Shapes: L rows (tokens), I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.ops.fp8 import Rows8, quantise
from millstream.ops.frame_rows import Addend
from millstream.ops.linear import linear_gelu, linear_rows


class Dense(nn.Module):
    """The given layers side by side. Its input must come as `Rows8` if it `is_fp8`."""

    def __init__(self, layers: Sequence[nn.Linear], *, fp8: bool) -> None:
        super().__init__()
        weight = (
            torch.cat([layer.weight.detach() for layer in layers])
            if len(layers) > 1
            else layers[0].weight.detach()
        )
        scales = None
        if fp8:
            rows = quantise(weight)
            weight = rows.values_LI
            scales = rows.scales_L1
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]), requires_grad=False)
        self.scales = None if scales is None else nn.Parameter(scales, requires_grad=False)

    @property
    def is_fp8(self) -> bool:
        return self.scales is not None

    def forward(self, x: Tensor | Rows8) -> Addend:
        """Return the product as one tensor; that of a rank's share may be in parts."""
        return self.product(x)

    def product(self, x: Tensor | Rows8, out: Tensor | None = None) -> Tensor:
        return _product(x, self.weight, self.bias, self.scales, out)

    def some(self, x: Tensor | Rows8, outputs: slice) -> Tensor:
        """Return the product for these outputs only."""
        return _product(
            x, self.weight[outputs], self.bias[outputs], None if self.scales is None else self.scales[outputs]
        )

    def with_gelu(self, x_LI: Tensor) -> Tensor:
        assert not self.is_fp8, "an e4m3 product has no GELU at its end"
        return linear_gelu(x_LI, self.weight, self.bias)


def _product(
    x: Tensor | Rows8, weight_OI: Tensor, bias_O: Tensor, scales_O1: Tensor | None, out: Tensor | None = None
) -> Tensor:
    if isinstance(x, Rows8):
        assert scales_O1 is not None, "only an e4m3 weight takes Rows8"
        return linear_rows(x, Rows8(weight_OI, scales_O1), bias_O, out)
    assert scales_O1 is None, "an e4m3 weight wants its input as Rows8"
    return F.linear(x, weight_OI, bias_O) if out is None else torch.addmm(bias_O, x, weight_OI.t(), out=out)
