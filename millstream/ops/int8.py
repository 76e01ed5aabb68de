"""Linear layers in 8 bits on a CPU, by oneDNN: two to four times as fast as float32 where the CPU has dot
matmuls of bytes.

Inputs are unsigned, over a range measured beforehand: one range for all rows, so that what a session gets
does not depend on who shares its call. Weights are signed, with a scale for each output. Sums are exact,
results float32 or bytes again.
Shapes: I inputs, O outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from millstream.ops.precision import cpu_kind

LARGEST = 255
"""Largest unsigned byte."""
_NONE: list[float] = []


class Range(NamedTuple):
    """Range that a layer's inputs lie in; values outside are clamped to it. Zero is always within."""

    low: float
    high: float

    @property
    def scale(self) -> float:
        return max(max(self.high, 0.0) - min(self.low, 0.0), 1e-6) / LARGEST

    @property
    def zero(self) -> int:
        """The byte that stands for 0."""
        return round(-min(self.low, 0.0) / self.scale)


def is_available() -> bool:
    """Return whether this build of torch has oneDNN's matmuls of bytes."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")


def to_bytes(x: Tensor, over: Range) -> Tensor:
    """Round values to the nearest byte of the range."""
    shifted = torch.add(x.new_tensor(over.zero + 0.5), x, alpha=1 / over.scale)
    return shifted.clamp_(0, LARGEST).to(torch.uint8)


class Int8Weight(NamedTuple):
    values: Tensor
    scales_O: Tensor

    @classmethod
    def of(cls, weight_OI: Tensor) -> Int8Weight:
        """A row for each output. Where a CPU adds two products in 16 bits, a bit less, or that sum would not
        fit."""
        largest = 63 if cpu_kind() == "avx2" else 127
        weight = weight_OI.detach().float()
        scales = (weight.abs().amax(dim=1) / largest).clamp_min(1e-12)
        return cls((weight / scales[:, None]).round().to(torch.int8), scales)


class Int8Linear(nn.Module):
    """A linear layer in 8 bits, for inputs of a known range."""

    def __init__(self, plain: nn.Linear, over: Range) -> None:
        super().__init__()
        self.over = over
        weight = Int8Weight.of(plain.weight)
        self._weight = torch.ops.onednn.qlinear_prepack(weight.values, None)
        self._scales = weight.scales_O
        self._zeros = torch.zeros(len(weight.scales_O), dtype=torch.int32)
        self._bias = plain.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        return self._product(to_bytes(x, self.over), "none", None)

    def gelu_bytes(self, x: Tensor, over: Range) -> Tensor:
        """GELU of the matmul, as bytes of a range.

        By tanh as everywhere, but by erf on AVX2, where oneDNN's tanh takes twice as long as the matmul
        itself. The two differ by 0.0005 at most, a small part of a byte's step.
        """
        by = "none" if cpu_kind() == "avx2" else "tanh"  # oneDNN's names
        return self._product(to_bytes(x, self.over), "gelu", over, by)

    def of_bytes(self, x_u8: Tensor) -> Tensor:
        """Return the matmul of an input that is bytes of the layer's range already."""
        assert x_u8.dtype == torch.uint8, f"the input is bytes already, got {x_u8.dtype}"
        return self._product(x_u8, "none", None)

    def _product(self, x_u8: Tensor, activation: str, out: Range | None, by: str = "none") -> Tensor:
        scale, zero, dtype = (1.0, 0, torch.float32) if out is None else (out.scale, out.zero, torch.uint8)
        given = self.over.scale, self.over.zero, self._weight, self._scales, self._zeros, self._bias
        return torch.ops.onednn.qlinear_pointwise(x_u8, *given, scale, zero, dtype, activation, _NONE, by)


class Int8MLP(nn.Module):
    """Up, GELU, down, with bytes between."""

    def __init__(self, up: Int8Linear, down: Int8Linear) -> None:
        super().__init__()
        self.up = up
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        return self.down.of_bytes(self.up.gelu_bytes(x, self.down.over))
