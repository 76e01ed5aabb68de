"""Which rows of a chunk somebody has, where modulations are said of frames and rows are shared out regardless of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Addend = Tensor | Sequence[Tensor]
"""What is added to a residual, whole or in parts: those of several ranks, summed in float32 in their order."""


class RowsOfFrames(NamedTuple):
    """A run of rows, which may begin and end within a frame."""

    tokens: int
    """Of a frame."""
    first: int
    """Row of the chunk."""

    def frames(self, count: int, of: int) -> Tensor:
        """The frame of each of so many rows; those after the chunk's end are of its last, the `of`-th."""
        return ((torch.arange(count) + self.first) // self.tokens).clamp(max=of - 1)
