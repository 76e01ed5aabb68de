"""Tensor parallel on the fast path: fused blocks of some heads and some hidden units, with the same sums as plain ones.

A share's products are the fast path's own, of fewer rows or columns; so are its kernels. The norms of q and k take their mean
squares from all ranks, one small sum for both. The bias of a product that is summed comes from the first rank alone.
Shapes: L tokens of all rows, X = q, k and v of this rank's heads.
"""

from __future__ import annotations

from torch import Tensor, nn

from millstream.core.speed import Speed
from millstream.models.dit import CausalDiT, SelfAttention
from millstream.models.fast.attention import FastSelfAttention
from millstream.models.fast.linear import Dense
from millstream.models.fast.stack import FastStack
from millstream.ops.fp8 import Rows8
from millstream.ops.ring_write import mean_squares
from millstream.parallel.collectives import RankGroup


class SummedDense(Dense):
    """A product of some of the inputs, put together from all ranks'."""

    def __init__(self, share: Dense, group: RankGroup, what: str) -> None:
        """Takes its weights over."""
        nn.Module.__init__(self)
        self.weight, self.bias, self.scales = share.weight, share.bias, share.scales
        self._group, self._what = group, what
        if group.place > 0:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | Rows8) -> Tensor:
        return self._group.sum(super().forward(x), self._what)


class TensorFastAttention(FastSelfAttention):
    """Some of the heads."""

    def __init__(self, share: SelfAttention, speed: Speed, group: RankGroup) -> None:
        super().__init__(share, speed)
        held = share.q.out_features * group.size
        assert held == self.width, f"a share of {held} of {self.width} heads' outputs over {group.size} ranks"
        self._group = group
        self.out = SummedDense(self.out, group, "attention")

    def _means(self, qkv_LX: Tensor) -> Tensor:
        return self._group.sum(mean_squares(qkv_LX, self.width), "norms")


def sum_hidden_units(dit: CausalDiT, group: RankGroup) -> None:
    """Have fast blocks with some of the hidden units think together."""
    blocks: nn.Module = dit.blocks
    assert isinstance(blocks, FastStack), f"plain blocks sum by themselves, got {type(blocks)}"
    for block in blocks:
        block.down = SummedDense(block.down, group, "mlp")
