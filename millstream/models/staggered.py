"""A chunk's memory while later chunks of its session are already under way: it stays as it was placed, and
sees none of them.

Approximate by nature: the later chunks attend to this one's keys as noisy as they are, and take the slots of
frames that would only have left the window after it.
Shapes: B batch, L chunk tokens, N heads, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.models.kv import Attended, KVRing
from millstream.ops.attention import attend
from millstream.ops.rope import Phases


class StaggeredMemory:
    def __init__(self, placed: KVRing) -> None:
        self._ring = placed.as_placed()
        self._newest = placed.slots.newest
        self._hidden: tuple[int, ...] = ()
        self._mask: Tensor | None = None

    @property
    def phases(self) -> Phases:
        return self._ring.phases

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> Attended:
        return self._ring.write(layer, k_BLNH, v_BLNH)

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        k, v, bias = self._ring.write(layer, k_BLNH, v_BLNH)
        mask = self._later_chunks_hidden(k)
        if mask is not None:
            bias = mask if bias is None else bias + mask
        return attend(q_BLNH, k, v, bias)

    def _later_chunks_hidden(self, k_BWNH: Tensor) -> Tensor | None:
        """Added to the scores: nothing, and minus infinity where frames of later chunks lie by now."""
        hidden = tuple(slot for slot, frame in enumerate(self._ring.slots.frames) if frame > self._newest)
        if hidden != self._hidden:
            shape = self._ring.shape
            by_slot = k_BWNH.new_zeros(shape.window, shape.tokens_per_frame)
            by_slot[list(hidden)] = -torch.inf
            self._hidden = hidden
            self._mask = by_slot.flatten()[: k_BWNH.shape[1]].view(1, 1, 1, -1)
        return self._mask
