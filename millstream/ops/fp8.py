"""Rows of numbers in e4m3, each with its own scale.

No calibration: a row's scale is its largest value over the largest that e4m3 holds. Scales are float32.
Shapes: L rows (tokens, or a weight's outputs), I numbers in each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
LEAST_SCALE = 1e-12
"""Scale of a row of zeros, so that nothing is divided by zero."""


@dataclass(frozen=True, slots=True)
class Rows8:
    """Rows in e4m3."""

    values_LI: Tensor
    scales_L1: Tensor

    def restored(self) -> Tensor:
        """Return the rows in float32."""
        return self.values_LI.float() * self.scales_L1


def quantise(x_LI: Tensor) -> Rows8:
    x = x_LI.float()
    scales = (x.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp_min(LEAST_SCALE)
    return Rows8((x / scales).to(E4M3), scales)
