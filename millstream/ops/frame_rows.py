"""Rows of a chunk that a rank has, where modulations belong to frames and rows are shared out regardless of
frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Addend = Tensor | Sequence[Tensor]
"""Addend of a residual, whole or in parts. Parts come from several ranks and are summed in float32, in the
order of the ranks."""


class RowsOfFrames(NamedTuple):
    """A run of rows, which may begin and end within a frame."""

    tokens: int
    """Tokens of a frame."""
    first: int
    """The first of the rows, as a row of the chunk."""

    def frames(self, count: int, of: int) -> Tensor:
        """The frame of each of so many rows; those after the chunk's end are of its last, the `of`-th."""
        return ((torch.arange(count) + self.first) // self.tokens).clamp(max=of - 1)
