"""Host memory for tensors that keep coming in the same shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.wire.framing import DTYPES, TensorEntry


class Buffers:
    """At most `capacity` shapes; the one used longest ago goes. Two of each, taken in turn: what was received is
    overwritten by the next but one of its name and shape, so whoever keeps a tensor copies it."""

    def __init__(self, *, pinned: bool = False, capacity: int = 32) -> None:
        self._pinned, self._capacity = pinned, capacity
        self._held: dict[tuple[str, str, tuple[int, ...]], list[Tensor]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, entry: TensorEntry) -> Tensor:
        key = (entry.name, entry.dtype, entry.shape)
        pair = self._held.pop(key, [])
        buffer = self._new(entry) if len(pair) < 2 else pair.pop(0)
        self._held[key] = [*pair, buffer]
        if len(self._held) > self._capacity:
            del self._held[next(iter(self._held))]
        return buffer

    def _new(self, entry: TensorEntry) -> Tensor:
        return torch.empty(entry.shape, dtype=DTYPES[entry.dtype], pin_memory=self._pinned)
