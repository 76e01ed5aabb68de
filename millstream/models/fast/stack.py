"""A DiT's blocks on the fast path, in the place of the plain ones and called as they are.

One device. Embeddings, the prompt's keys and values and the head stay plain: they are called once.
Shapes: B rows (sessions), F frames, T tokens a frame, L = B*F*T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from millstream.core.speed import Speed
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.fast.block import FastBlock, Pending
from millstream.models.joint import JointMemory
from millstream.models.kv import KVRing, Memory
from millstream.ops.rows import add_gated


class FastStack(nn.ModuleList):
    """Blocks one after the other. Weights are taken over block by block, so a model is never in memory twice."""

    def __init__(self, plain: nn.ModuleList, speed: Speed) -> None:
        super().__init__()
        modulations = torch.stack([block.modulation.detach()[0] for block in plain])
        for layer, block in enumerate(plain):
            self.append(FastBlock(block, speed))
            plain[layer] = nn.Identity()
        self.modulations_N16D = nn.Parameter(modulations[:, None], requires_grad=False)

    def forward(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> Tensor:
        """Changes `x` in place and returns it."""
        x_LD, levels = x_BFTD.flatten(0, 2), self._levels(levels_BF6D)
        pending = self._walk(list(self), x_LD, levels, rings_of(memory), cross)
        assert pending.y_LD is not None
        add_gated(x_LD, pending.y_LD, pending.gate_FD)
        return x_BFTD

    def remember(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> None:
        """Leave keys and values; the last layer stops at its own."""
        x_LD, levels, rings = x_BFTD.flatten(0, 2), self._levels(levels_BF6D), rings_of(memory)
        *body, last = self
        pending = self._walk(body, x_LD, levels, rings, cross)
        last.remember(x_LD, pending, levels[-1], len(body), rings)

    @staticmethod
    def _walk(
        blocks: Sequence[nn.Module], x_LD: Tensor, levels_NF6D: Tensor, rings: Sequence[KVRing], cross: CrossKV
    ) -> Pending:
        pending = Pending()
        for layer, block in enumerate(blocks):
            pending = block(x_LD, pending, levels_NF6D[layer], layer, rings, cross.k[layer], cross.v[layer])
        return pending

    def _levels(self, levels_BF6D: Tensor) -> Tensor:
        """Every block's modulations at once: [blocks, B*F, 6, D]."""
        return self.modulations_N16D + levels_BF6D.flatten(0, 1)


def quicken(dit: CausalDiT, speed: Speed) -> CausalDiT:
    """The same model with its blocks on the fast path."""
    dit.blocks = FastStack(dit.blocks, speed)
    return dit


def rings_of(memory: Memory) -> Sequence[KVRing]:
    """One for each row. The fast path writes rings itself, so it needs to know them."""
    if isinstance(memory, JointMemory):
        return memory.rings
    assert isinstance(memory, KVRing), f"the fast path streams over rings, got {type(memory).__name__}"
    return [memory]
