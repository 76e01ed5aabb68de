"""A DiT's blocks on the fast path, in the place of the plain ones and called as they are.

One device, or a rank's share. Embeddings and the prompt's keys and values stay plain: they are small, or
seldom.
Shapes: B rows (sessions), F frames, T tokens a frame, L = B*F*T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from millstream.core.speed import Speed
from millstream.models.dit import BlockStack, CrossKV
from millstream.models.fast.attention import Ring
from millstream.models.fast.block import FastBlock, PendingResidual
from millstream.models.fast.spread import ALONE, Spread
from millstream.models.joint import JointMemory
from millstream.models.kv import KVRing, Memory
from millstream.models.paired import PairedMemory
from millstream.models.typed_modules import TypedModuleList
from millstream.ops.rows import add_gated


class FastStack(TypedModuleList[FastBlock]):
    """Blocks one after the other. Weights are taken over block by block, so a model is never in memory
    twice."""

    def __init__(self, plain: BlockStack, speed: Speed, spread: Spread = ALONE) -> None:
        super().__init__()
        self.spread = spread
        self._low_attention = speed.low_attention
        assert len(plain), "a model has blocks"
        modulations = torch.stack([block.modulation.detach()[0] for block in plain])
        for layer, block in enumerate(plain):
            self.append(FastBlock(block, speed, spread))
            plain[layer] = nn.Identity()
        self.modulations_N16D = nn.Parameter(modulations[:, None], requires_grad=False)

    def changed(self, modulations_N16D: Tensor) -> None:
        """Take these modulations over: the weights of the blocks have changed."""
        assert len(modulations_N16D) == len(self), (
            f"{len(modulations_N16D)} modulations of {len(self)} blocks"
        )
        self.modulations_N16D = nn.Parameter(modulations_N16D, requires_grad=False)

    def forward(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> Tensor:
        """Changes `x` in place and returns it."""
        self.walk(x_BFTD, levels_BF6D, self._rings(memory), cross)
        return x_BFTD

    def remember(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> None:
        """Write keys and values to memory; the last layer stops at its own."""
        self.walk_to_keys(x_BFTD, levels_BF6D, self._rings(memory), cross)

    def walk(self, x_BFTD: Tensor, levels_BF6D: Tensor, rings: Sequence[Ring], cross: CrossKV) -> None:
        """Call all blocks on `x`, in place."""
        x_LD = self.spread.enter(x_BFTD)
        levels = self._levels(levels_BF6D)
        pending = PendingResidual()
        for layer, block in enumerate(self):
            pending = block(x_LD, pending, levels[layer], layer, rings, cross.k[layer], cross.v[layer])
        assert pending.y is not None
        add_gated(x_LD, pending.y, pending.gate_FD, self.spread.rows)
        self.spread.write_back(x_BFTD, x_LD)

    def walk_to_keys(
        self, x_BFTD: Tensor, levels_BF6D: Tensor, rings: Sequence[Ring], cross: CrossKV
    ) -> None:
        """Call all blocks as far as the last one's keys and values. `x` is meaningless afterwards."""
        x_LD = self.spread.enter(x_BFTD)
        levels = self._levels(levels_BF6D)
        pending = PendingResidual()
        *body, last = self
        for layer, block in enumerate(body):
            pending = block(x_LD, pending, levels[layer], layer, rings, cross.k[layer], cross.v[layer])
        last.remember(x_LD, pending, levels[-1], len(body), rings)

    def _rings(self, memory: Memory) -> Sequence[KVRing]:
        """Return the rings, with all that blocks need of them."""
        rings = rings_of(memory)
        if self._low_attention:
            for ring in rings:
                ring.pack()
        return rings

    def _levels(self, levels_BF6D: Tensor) -> Tensor:
        """Every block's modulations at once: [blocks, B*F, 6, D]."""
        return self.modulations_N16D + levels_BF6D.flatten(0, 1)


def rings_of(memory: Memory) -> Sequence[KVRing]:
    """Return a ring for each row, or for each of two chunks in one call. The fast path writes rings itself,
    so it needs to know them."""
    if isinstance(memory, (JointMemory, PairedMemory)):
        return memory.rings
    assert isinstance(memory, KVRing), f"the fast path streams over rings, got {type(memory).__name__}"
    return [memory]
