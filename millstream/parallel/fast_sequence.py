"""Sequence parallel on the fast path: fused blocks of some tokens, which trade them for heads around
attention.

A rank has q, k and v of all heads of its rows, so it norms and turns them by itself and leaves each rank's
heads together, as they travel. What arrives lies as all tokens of this rank's heads: keys and values go into
the ring from there, and queries are read where they are. A call of several sessions has all rows everywhere:
a rank attends with its heads, and all collect the answers.
Shapes: B rows of a ring, L all tokens of a row, S of them on this rank, P ranks, N all heads, M = N/P heads
of this rank, H head width, X = q, k and v of all heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from millstream.core.speed import Speed
from millstream.models.dit import SelfAttention
from millstream.models.fast.attention import FastSelfAttention, Ring, joined
from millstream.ops.fp8 import Rows8
from millstream.ops.frame_rows import Addend
from millstream.ops.quantised_kv import PackedQueries
from millstream.ops.ring_write import put_heads, turn_heads
from millstream.ops.rope import Phases
from millstream.ops.rows import join_heads
from millstream.parallel.collectives import RankGroup
from millstream.parallel.row_spread import RowSpread


class SequenceSpread(RowSpread):
    def __init__(self, group: RankGroup) -> None:
        super().__init__(group)
        self._phases: Phases | None = None

    def attention(self, plain: SelfAttention, speed: Speed) -> FastSelfAttention:
        return SequenceFastAttention(plain, speed, self)

    def phases(self, layer: int, rings: Sequence[Ring], batches: Sequence[int]) -> Phases:
        """Return the phases of the rows that this rank has, found by the first layer of a call for all of
        them."""
        if layer == 0 or self._phases is None:
            each = [ring.phases for ring, batch in zip(rings, batches, strict=True) for _ in range(batch)]
            cos = torch.cat([phases.cos for phases in each])
            sin = torch.cat([phases.sin for phases in each])
            self._phases = Phases(self._mine(cos), self._mine(sin))
        return self._phases

    def _mine(self, x_L: Tensor) -> Tensor:
        return (
            x_L if self.rows is None else self.filled(x_L).narrow(0, self.rows.first, self.share).contiguous()
        )


class SequenceFastAttention(FastSelfAttention):
    def __init__(self, whole: SelfAttention, speed: Speed, spread: SequenceSpread) -> None:
        super().__init__(whole, speed)
        self._spread = spread

    def forward(self, x: Tensor | Rows8, layer: int, rings: Sequence[Ring]) -> Addend:
        parts = zip(rings, self._heads(x, layer, rings), strict=True)
        answers = [
            self._attend(self._put(heads, layer, ring), layer, ring, fp8=False) for ring, heads in parts
        ]
        return self.out(self._tokens(joined(answers)))

    def remember(self, x: Tensor | Rows8, layer: int, rings: Sequence[Ring]) -> None:
        """Write keys and values to the rings, and attend to nothing."""
        for ring, heads in zip(rings, self._heads(x, layer, rings), strict=True):
            self._put(heads, layer, ring)

    def _heads(self, x: Tensor | Rows8, layer: int, rings: Sequence[Ring]) -> list[Tensor]:
        """q, k and v of this rank's heads, for all tokens of each ring: [B, L, 3, M, H]."""
        group = self._spread.group
        batches = [len(ring.span(layer, rounded=False).k_BWNH) for ring in rings]
        phases = self._spread.phases(layer, rings, batches)
        turned_PS3MH = turn_heads(self.qkv(x), self.norm_q, self.norm_k, phases, group.size, eps=self.eps)
        if self._spread.share:
            mine = group.exchange(turned_PS3MH, "tokens for heads").flatten(0, 1)[: self._spread.count]
        else:
            mine = turned_PS3MH[group.place]
        lengths = [batch * len(ring.index) for ring, batch in zip(rings, batches, strict=True)]
        each = zip(mine.split(lengths), batches, strict=True)
        return [heads.unflatten(0, (batch, -1)) for heads, batch in each]

    def _put(self, heads_BL3MH: Tensor, layer: int, ring: Ring) -> Tensor | PackedQueries:
        """Write keys and values to the ring and return the queries [B, L, M, H]."""
        k_BWMH, v_BWMH, _ = ring.span(layer, rounded=False)
        for heads_L3MH, k_WMH, v_WMH in zip(heads_BL3MH, k_BWMH, v_BWMH, strict=True):
            put_heads(heads_L3MH, ring.index, k_WMH, v_WMH)
        self._follow(layer, ring)
        q_BLMH = heads_BL3MH[:, :, 0]
        return PackedQueries.of(q_BLMH) if self.low_attention and ring.bias is None else q_BLMH

    def _tokens(self, attended_LX: Tensor | Rows8) -> Tensor | Rows8:
        """Return the answers of all heads for this rank's rows."""
        assert isinstance(attended_LX, Tensor), "heads travel in the model's dtype"
        group = self._spread.group
        spread = self._spread
        if spread.share:
            parts_PSX = group.exchange(
                spread.filled(attended_LX).unflatten(0, (group.size, -1)), "heads for tokens"
            )
        else:
            parts_PSX = group.collect(attended_LX, "heads")
        return join_heads(parts_PSX, fp8=self.out.is_fp8)
