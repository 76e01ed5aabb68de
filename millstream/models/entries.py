"""Entries of a DiT: where it can be steered by more than latents, noise levels and words.

A DiT adds what it is given and knows nothing of conditions; who makes entries of them is `conditions/`.
Shapes: B batch (1 stands for every row), F frames, T tokens a frame (1 stands for every token), D width, C
channels beside the latents', Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Entries(NamedTuple):
    """Tensors that enter a DiT with one call. Nothing enters where one is None: the same bits as without."""

    channels_BFCYX: Tensor | None = None
    """Concatenated to the latents, in a DiT whose configuration has `entry_channels`."""
    patch_BFTD: Tensor | None = None
    """Added to the patch embedding."""
    time_BFD: Tensor | None = None
    """Added to the embedding of the noise level, which modulates every block and the head."""

    @property
    def is_empty(self) -> bool:
        return all(entry is None for entry in self)

    def frames(self, which: slice | Tensor) -> Entries:
        """Return the entries of some of the frames, by a range or by their numbers."""
        return self._each(lambda entry: entry[:, which])

    @property
    def num_frames(self) -> int:
        """Frames that they are of; 0 where there are none."""
        return next((entry.shape[1] for entry in self if entry is not None), 0)

    def split(self, parts: int) -> list[Entries]:
        """Return the entries of so many equal parts of a batch."""
        cut = [
            [None] * parts if entry is None else [entry] * parts if len(entry) == 1 else entry.chunk(parts)
            for entry in self
        ]
        return [Entries(*part) for part in zip(*cut, strict=True)]

    def repeated(self, times: int) -> Entries:
        """Return the entries of a batch that is repeated as a whole."""
        return self._each(
            lambda entry: entry if len(entry) == 1 else entry.repeat(times, *(1,) * (entry.ndim - 1))
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> Entries:
        return Entries(*(None if entry is None else change(entry) for entry in self))


NO_ENTRIES = Entries()


def join_rows(rows: Sequence[Entries]) -> Entries:
    """Return the entries of a batch from those of each row; a row without one has zeros."""
    return Entries(*(_joined(parts, (1,) * len(rows), 0) for parts in zip(*rows, strict=True)))


def join_frames(parts: Sequence[Entries], frames: Sequence[int]) -> Entries:
    """Return the entries of frames one after the other, so many of each part; a part without one has
    zeros."""
    return Entries(*(_joined(each, frames, 1) for each in zip(*parts, strict=True)))


def _joined(parts: Sequence[Tensor | None], sizes: Sequence[int], dim: int) -> Tensor | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    shape = [max(sizes_of) for sizes_of in zip(*(part.shape for part in given), strict=True)]
    whole = []
    for part, size in zip(parts, sizes, strict=True):
        shape[dim] = size
        whole.append(given[0].new_zeros(shape) if part is None else part.expand(shape))
    return torch.cat(whole, dim=dim)
