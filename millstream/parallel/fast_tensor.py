"""Tensor parallel on the fast path: fused blocks of some heads and some hidden units, and between matmuls
some of the tokens.

Each pair of matmuls ends in a sum over ranks of which a rank gets its own rows (a reduce-scatter), and the
next begins by collecting those of all ranks: as many bytes as one sum of everything, fewer where what is
collected is in e4m3. In between a rank norms its rows and asks the prompt for them, instead of all ranks for
all. A call of several sessions, whose rows have several prompts, sums everything everywhere.

Matmuls and kernels are the fast path's own, of fewer rows or columns. The norms of q and k take their mean
squares from all ranks, one small sum for both. The bias of a matmul that is summed comes from the first rank
alone. A large sum can be made in two halves, one on its way while the other is multiplied.
Shapes: L tokens of a call, D width, X = q, k and v of this rank's heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from millstream.core.speed import Speed
from millstream.models.dit import SelfAttention
from millstream.models.fast.attention import FastSelfAttention
from millstream.models.fast.linear import Dense
from millstream.ops.fp8 import Rows8
from millstream.ops.frame_rows import Addend
from millstream.ops.ring_write import mean_squares
from millstream.parallel.row_spread import RowSpread

HIDDEN_FROM_BYTES = 1 << 62
"""A sum of so much is made in two halves, of the outputs: one travels while the other is multiplied. None is,
until it was seen to pay: on an H200 halves alone make a rank's calls 3% longer, and no link was there to hide
(`benchmarks/hidden_sums.py`)."""


class TensorSpread(RowSpread):
    def attention(self, plain: SelfAttention, speed: Speed) -> FastSelfAttention:
        return TensorFastAttention(plain, speed, self)

    def down(self, own: Dense) -> Dense:
        return SummedDense(own, self, "mlp")

    def normed(
        self,
        x_LD: Tensor,
        y: Addend | None,
        gate_FD: Tensor | None,
        scale_FD: Tensor,
        shift_FD: Tensor,
        *,
        eps: float,
        fp8: bool,
        what: str,
    ) -> Tensor | Rows8:
        """Return the normed rows of all ranks."""
        mine = super().normed(x_LD, y, gate_FD, scale_FD, shift_FD, eps=eps, fp8=fp8, what=what)
        return self._whole(mine, what) if self.share else mine

    def summed(self, part_LD: Tensor, what: str) -> Tensor:
        """Return this rank's rows of the sum of all ranks' parts."""
        if not self.share:
            return self.group.sum(part_LD, what)
        return self.group.sum_rows(self.filled(part_LD), what)

    def summed_product(self, product: Dense, x: Tensor | Rows8, what: str) -> Addend:
        """Return this rank's rows of a matmul of all ranks' inputs, or the parts that are still to be
        summed."""
        outputs, _ = product.weight.shape
        if self.share * self.group.size * outputs * product.bias.itemsize < HIDDEN_FROM_BYTES:
            return self.summed(product.product(x), what)
        halves = slice(outputs // 2), slice(outputs // 2, None)
        travelling = [self.group.start_sum_rows(self.filled(product.some(x, half)), what) for half in halves]
        return torch.cat([each.wait().unflatten(0, (self.share, -1)) for each in travelling], dim=1)

    def sum_means(self, means_2L: Tensor) -> Tensor:
        """Return the means over all heads, from those of this rank's share of them."""
        return self.group.sum(means_2L, "norms")

    def _whole(self, x: Tensor | Rows8, what: str) -> Tensor | Rows8:
        if isinstance(x, Rows8):
            return Rows8(self.collected(x.values_LI, what), self.collected(x.scales_L1, "scales"))
        return self.collected(x, what)


class SummedDense(Dense):
    """A matmul of a share, whose weights it takes over: of some of the inputs, put together from all
    ranks'."""

    def __init__(self, share: Dense, spread: TensorSpread, what: str) -> None:
        nn.Module.__init__(self)
        self.weight = share.weight
        self.bias = share.bias
        self.scales = share.scales
        self._spread = spread
        self._what = what
        if spread.group.place > 0:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | Rows8) -> Addend:
        return self._spread.summed_product(self, x, self._what)


class TensorFastAttention(FastSelfAttention):
    """Self-attention of some of the heads."""

    def __init__(self, share: SelfAttention, speed: Speed, spread: TensorSpread) -> None:
        super().__init__(share, speed)
        held = share.q.out_features * spread.group.size
        assert held == self.width, (
            f"a share of {held} of {self.width} heads' outputs over {spread.group.size} ranks"
        )
        self._spread = spread
        self.out = SummedDense(self.out, spread, "attention")

    def _means(self, qkv_LX: Tensor) -> Tensor:
        return self._spread.sum_means(mean_squares(qkv_LX, self.width))
