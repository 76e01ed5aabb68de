"""The sink's keys kept a second time, as they were written: each chunk turns them to their distance from the
window.

Only with `windowed` positions. A fork shares them until either side writes sink frames again.
Shapes: B batch, L chunk tokens, W window tokens, N heads, H head width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from millstream.models.ring_shape import RingShape
from millstream.ops.rope import Phases, frame_numbers, rotate, shift_phases


class SinkKeys:
    def __init__(self, shape: RingShape, like_k: Tensor) -> None:
        """`like_k` are a window's keys [layers, B, W, N, H]."""
        self.k = like_k[:, :, : shape.sink * shape.tokens_per_frame].clone()
        self.tokens: Tensor | None = None
        """Places of the placed frames' tokens in the sink; None if the frames are not sink frames."""
        self._untwist: Phases
        self._shape = shape
        self._is_shared = False

    def fork(self) -> SinkKeys:
        """Return keys that go on by themselves. Nothing is copied until one side writes."""
        self._is_shared = True
        return copy.copy(self)

    def to(self, device: torch.device) -> None:
        self.k = self.k.to(device, copy=True)
        self._is_shared = False

    def place(self, tokens: Tensor | None, offsets: Sequence[int]) -> None:
        """Expect the keys of placed frames whose tokens have these places in the sink, with phases that are
        off by so much."""
        self.tokens = tokens
        if tokens is not None:
            self._own()
            back = frame_numbers([-offset for offset in offsets], self.k.device)
            self._untwist = shift_phases(back, self._shape.tokens_per_frame, self._shape.head_width)

    def keep(self, layer: int, k_BLNH: Tensor) -> None:
        """Keep the sink's fresh keys as they would be at their own frame."""
        assert self.tokens is not None, "no frame of the sink is placed"
        self.k[layer].index_copy_(1, self.tokens, rotate(k_BLNH, self._untwist))

    def turn(self, k: Tensor, offsets: Sequence[int]) -> None:
        """Overwrite the sink's part of a window's keys [layers, B, W, N, H], turned by these offsets."""
        per_frame = self._shape.tokens_per_frame
        turned = shift_phases(frame_numbers(offsets, k.device), per_frame, self._shape.head_width)
        end = len(offsets) * per_frame
        k[:, :, :end] = rotate(self.k[:, :, :end], turned)

    def resume(self, k: Tensor) -> None:
        """Go on from what another ring of this shape held."""
        self._own()
        self.k.copy_(k)

    def _own(self) -> None:
        """Share nothing any more: the keys are about to be overwritten."""
        if self._is_shared:
            self.k = self.k.clone()
            self._is_shared = False
