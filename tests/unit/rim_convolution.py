"""Stands for our own convolution where there is no GPU."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


class RimConvolution:
    """It reads the rim instead of padding, and takes square weights only."""

    def __init__(self) -> None:
        self.calls = 0

    def pack(self, weight: Tensor) -> Tensor | None:
        return (
            weight.clone() if weight.shape[0] == weight.shape[1] and weight.shape[2:] == (3, 3, 3) else None
        )

    def __call__(self, canvas: Tensor, packed_weight: Tensor) -> Tensor:
        self.calls += 1
        return F.conv3d(canvas.permute(3, 0, 1, 2)[None], packed_weight)[0].permute(1, 2, 3, 0).contiguous()
