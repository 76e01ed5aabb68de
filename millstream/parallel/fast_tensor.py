"""Tensor parallel on the fast path: fused blocks of some heads and some hidden units, and between products some of the tokens.

Each pair of products ends in a sum over ranks of which a rank gets its own rows (a reduce-scatter), and the next begins by
collecting everybody's: as many bytes as one sum of everything, fewer where what is collected is in e4m3. In between a rank
norms its rows and asks the prompt for them, instead of all ranks for all. A call of several sessions, whose rows have several
prompts, sums everything everywhere.

Where ranks reach each other's memory (`PeerMemory`) that is no collective: a product leaves its part where the others see it,
and the kernel that adds to the residual and norms it sums everybody's parts of its rows as it reads them, and writes what it
makes of them to everybody.

Products and kernels are the fast path's own, of fewer rows or columns. The norms of q and k take their mean squares from all
ranks, one small sum for both. The bias of a product that is summed comes from the first rank alone. A large sum can be made
in two halves, one on its way while the other is multiplied.
Shapes: L tokens of a call, D width, X = q, k and v of this rank's heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from millstream.core.speed import Speed
from millstream.models.dit import SelfAttention
from millstream.models.fast.attention import FastSelfAttention
from millstream.models.fast.linear import Dense
from millstream.ops.fp8 import E4M3, Rows8
from millstream.ops.frame_rows import Addend
from millstream.ops.ring_write import mean_squares
from millstream.ops.rows import add_norm
from millstream.parallel.collectives import RankGroup
from millstream.parallel.peer_memory import PeerBuffer, PeerMemory
from millstream.parallel.row_spread import RowSpread

HIDDEN_FROM_BYTES = 1 << 62
"""A sum of so much is made in two halves, of the outputs: one travels while the other is multiplied. None is, until it was seen
to pay: on an H200 halves alone make a rank's calls 3% longer, and no link was there to hide (`benchmarks/hidden_sums.py`)."""


class TensorSpread(RowSpread):
    def __init__(self, group: RankGroup, peers: PeerMemory | None = None) -> None:
        super().__init__(group)
        self._peers = peers

    @property
    def peers(self) -> PeerMemory | None:
        """Where this call's rows are shared out."""
        return self._peers if self.share else None

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
        """Everybody's rows."""
        if self.peers is None:
            mine = super().normed(x_LD, y, gate_FD, scale_FD, shift_FD, eps=eps, fp8=fp8, what=what)
            return self._whole(mine, what) if self.share else mine
        values = self._buffer(self.peers, "rows", x_LD.shape[1], E4M3 if fp8 else x_LD.dtype)
        scales = self._buffer(self.peers, "scales", 1, torch.float32) if fp8 else None
        outs = self._mine(values, scales)
        add_norm(x_LD, y, gate_FD, scale_FD, shift_FD, eps=eps, fp8=fp8, rows=self.rows, outs=outs)
        self.group.meet("collect", what, values.rows(0, self.share)[0], self.peers.meeting(values))
        whole = values.each[self.group.place][: self.count]
        return whole if scales is None else Rows8(whole, scales.each[self.group.place][: self.count])

    def summed(self, part_LD: Tensor, what: str) -> Tensor:
        """This rank's rows of what all ranks' parts come to."""
        if not self.share:
            return self.group.sum(part_LD, what)
        return self.group.sum_rows(self.filled(part_LD), what)

    def parts(self, peers: PeerMemory, product: Dense, x: Tensor | Rows8, what: str) -> list[Tensor]:
        """Of this rank's rows, all ranks' parts, which are still to be summed."""
        outputs, _ = product.weight.shape
        sums = self._buffer(peers, "sums", outputs, product.bias.dtype)
        own = sums.each[self.group.place]
        product.product(x, own[: self.count])
        self.group.meet("scatter", what, own, peers.meeting(sums))
        return self._rows(sums)

    def sum_means(self, means_2L: Tensor) -> Tensor:
        """Over all heads, of this rank's share of them."""
        if self.peers is None:
            return self.group.sum(means_2L, "norms")
        means = self.peers.buffer("norms", tuple(means_2L.shape), means_2L.dtype)
        own = means.each[self.group.place].copy_(means_2L)
        self.group.meet("sum", "norms", own, self.peers.meeting(means))
        return torch.stack(list(means.each)).sum(0)

    def _buffer(self, peers: PeerMemory, name: str, width: int, dtype: torch.dtype) -> PeerBuffer:
        return peers.buffer(name, (self.share * self.group.size, width), dtype)

    def _rows(self, buffer: PeerBuffer) -> list[Tensor]:
        """This rank's, in everybody's memory."""
        assert self.rows is not None, "rows are shared out"
        return buffer.rows(self.rows.first, self.share)

    def _mine(self, values: PeerBuffer, scales: PeerBuffer | None) -> list[Tensor | Rows8]:
        if scales is None:
            return [*self._rows(values)]
        return [Rows8(*each) for each in zip(self._rows(values), self._rows(scales), strict=True)]

    def _whole(self, x: Tensor | Rows8, what: str) -> Tensor | Rows8:
        if isinstance(x, Rows8):
            return Rows8(self.collected(x.values_LI, what), self.collected(x.scales_L1, "scales"))
        return self.collected(x, what)


class SummedDense(Dense):
    """A product of a share, whose weights it takes over: of some of the inputs, put together from all ranks'."""

    def __init__(self, share: Dense, spread: TensorSpread, what: str) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias, self.scales = share.weight, share.bias, share.scales
        self._spread, self._what = spread, what
        if spread.group.place > 0:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | Rows8) -> Addend:
        spread, (outputs, _) = self._spread, self.weight.shape
        if spread.peers is not None:
            return spread.parts(spread.peers, self, x, self._what)
        if spread.share * spread.group.size * outputs * self.bias.itemsize < HIDDEN_FROM_BYTES:
            return spread.summed(self.product(x), self._what)
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

    def _means(self, qkv_LX: Tensor) -> Tensor:
        return self._spread.sum_means(mean_squares(qkv_LX, self.width))
