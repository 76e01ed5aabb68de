"""Several sessions in one call: rows of a batch that share every product and none of their pasts.

Shapes: B sessions, L chunk tokens, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from millstream.models.dit import CrossKV
from millstream.models.kv import KVRing
from millstream.ops.rope import Phases


class JointMemory:
    """One ring a row. Rings may be filled to different lengths and stand at different frames."""

    def __init__(self, rings: Sequence[KVRing]) -> None:
        assert len({id(ring.window) for ring in rings}) == len(rings), (
            "rows that run together need a window each"
        )
        self.rings = rings
        phases = [ring.phases for ring in rings]
        self._phases = Phases(
            torch.stack([each.cos for each in phases]), torch.stack([each.sin for each in phases])
        )

    @property
    def phases(self) -> Phases:
        return self._phases

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> None:
        for ring, k, v in zip(self.rings, k_BLNH.split(1), v_BLNH.split(1), strict=True):
            ring.write(layer, k, v)

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        rows = zip(self.rings, q_BLNH.split(1), k_BLNH.split(1), v_BLNH.split(1), strict=True)
        return torch.cat([ring.attend(layer, q, k, v) for ring, q, k, v in rows])


def join_prompts(prompts: Sequence[CrossKV]) -> CrossKV:
    """Keys and values of one prompt a row."""
    return CrossKV(
        tuple(torch.cat(layer) for layer in zip(*(prompt.k for prompt in prompts), strict=True)),
        tuple(torch.cat(layer) for layer in zip(*(prompt.v for prompt in prompts), strict=True)),
    )
