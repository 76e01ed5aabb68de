"""Tensor parallel on the fast path: fused blocks of some heads and some hidden units, and between products some of the tokens.

Each pair of products ends in a sum over ranks of which a rank gets its own rows (a reduce-scatter), and the next begins by
collecting everybody's: as many bytes as one sum of everything, fewer where what is collected is in e4m3. In between a rank
norms its rows and asks the prompt for them, instead of all ranks for all. A call of several sessions, whose rows have several
prompts, sums everything everywhere.

Products and kernels are the fast path's own, of fewer rows or columns. The norms of q and k take their mean squares from all
ranks, one small sum for both. The bias of a product that is summed comes from the first rank alone. A large sum can be made
in two halves, one on its way while the other is multiplied.
Shapes: L tokens of a call, D width, X = q, k and v of this rank's heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from millstream.core.speed import Speed
from millstream.models.dit import SelfAttention
from millstream.models.fast.attention import FastSelfAttention, Ring
from millstream.models.fast.linear import Dense
from millstream.ops.fp8 import Rows8
from millstream.ops.ring_write import mean_squares
from millstream.parallel.row_spread import RowSpread

HIDDEN_FROM_BYTES = 1 << 62
"""A sum of so much is made in two halves, of the outputs: one travels while the other is multiplied. None is, until it was seen
to pay: on an H200 halves alone make a rank's calls 3% longer, and no link was there to hide (`benchmarks/hidden_sums.py`)."""


class TensorSpread(RowSpread):
    def attention(self, plain: SelfAttention, speed: Speed) -> FastSelfAttention:
        return TensorFastAttention(plain, speed, self)

    def up(self, own: Dense) -> Dense:
        return CollectingDense(own, self, "mlp")

    def down(self, own: Dense) -> Dense:
        return SummedDense(own, self, "mlp")

    def whole(self, x: Tensor | Rows8, what: str) -> Tensor | Rows8:
        """Everybody's rows of what a product takes."""
        if not self.share:
            return x
        if isinstance(x, Rows8):
            return Rows8(self.collected(x.values_LI, what), self.collected(x.scales_L1, "scales"))
        return self.collected(x, what)

    def summed(self, part_LD: Tensor, what: str) -> Tensor:
        """This rank's rows of what all ranks' parts come to."""
        if not self.share:
            return self.group.sum(part_LD, what)
        return self.group.sum_rows(self.filled(part_LD), what)


class SharedDense(Dense):
    """A product of a share, whose weights it takes over."""

    def __init__(self, share: Dense, spread: TensorSpread, what: str) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias, self.scales = share.weight, share.bias, share.scales
        self._spread, self._what = spread, what


class CollectingDense(SharedDense):
    """A product that takes everybody's rows."""

    def forward(self, x: Tensor | Rows8) -> Tensor:
        return super().forward(self._spread.whole(x, self._what))

    def with_gelu(self, x_LI: Tensor) -> Tensor:
        whole = self._spread.whole(x_LI, self._what)
        assert isinstance(whole, Tensor), "rows stay what they are"
        return super().with_gelu(whole)


class SummedDense(SharedDense):
    """A product of some of the inputs, put together from all ranks'."""

    def __init__(self, share: Dense, spread: TensorSpread, what: str) -> None:
        super().__init__(share, spread, what)
        if spread.group.place > 0:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | Rows8) -> Tensor:
        spread, (outputs, _) = self._spread, self.weight.shape
        if spread.share * spread.group.size * outputs * self.bias.itemsize < HIDDEN_FROM_BYTES:
            return spread.summed(super().forward(x), self._what)
        halves = slice(outputs // 2), slice(outputs // 2, None)
        travelling = [spread.group.start_sum_rows(spread.filled(self.some(x, half)), self._what) for half in halves]
        return torch.cat([each.wait().unflatten(0, (spread.share, -1)) for each in travelling], dim=1)


class TensorFastAttention(FastSelfAttention):
    """Some of the heads."""

    def __init__(self, share: SelfAttention, speed: Speed, spread: TensorSpread) -> None:
        super().__init__(share, speed)
        held = share.q.out_features * spread.group.size
        assert held == self.width, f"a share of {held} of {self.width} heads' outputs over {spread.group.size} ranks"
        self._spread = spread
        self.out = SummedDense(self.out, spread, "attention")

    def forward(self, x: Tensor | Rows8, layer: int, rings: Sequence[Ring]) -> Tensor:
        return super().forward(self._spread.whole(x, "attention"), layer, rings)

    def remember(self, x: Tensor | Rows8, layer: int, rings: Sequence[Ring]) -> None:
        super().remember(self._spread.whole(x, "attention"), layer, rings)

    def _means(self, qkv_LX: Tensor) -> Tensor:
        return self._spread.group.sum(mean_squares(qkv_LX, self.width), "norms")
