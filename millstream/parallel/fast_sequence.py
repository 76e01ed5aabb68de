"""Sequence parallel on the fast path: fused blocks of some tokens, which trade them for heads around attention.

A rank has q, k and v of all heads of its tokens, so it norms and turns them by itself, with the kernel that fills a ring on one
device; here it fills what travels. What arrives is put into the ring as it is.
Shapes: B rows of a ring, F frames, S tokens a frame on this rank, L all tokens of a row, N all heads, M heads of this rank,
H head width, X = q, k and v of all heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.core.speed import Speed
from millstream.models.dit import CausalDiT, SelfAttention
from millstream.models.fast.attention import FastSelfAttention, Projected, Ring, finished
from millstream.models.fast.spread import Spread
from millstream.models.kv import Memory
from millstream.ops.fp8 import Rows8
from millstream.ops.packed import PackedQueries
from millstream.ops.ring_write import write_ring
from millstream.parallel.collectives import RankGroup
from millstream.parallel.sequence import SequenceDiT, TokenSplit


class SequenceSpread(Spread):
    """Whose tokens are whose in the call that is made, for all layers of it."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self.tokens = 0
        """Of a frame, on all ranks together."""

    def attention(self, plain: SelfAttention, speed: Speed) -> FastSelfAttention:
        return SequenceFastAttention(plain, speed, self)

    def split(self, length: int) -> TokenSplit:
        """Of a row of so many tokens."""
        assert self.tokens, "a call says how many tokens a frame has"
        assert length % self.tokens == 0, f"{length} tokens are no frames of {self.tokens}"
        return TokenSplit(self.group, length // self.tokens, self.tokens)


class SequenceFastAttention(FastSelfAttention):
    def __init__(self, whole: SelfAttention, speed: Speed, spread: SequenceSpread) -> None:
        super().__init__(whole, speed)
        self._spread = spread

    def _answer(self, rows: Projected, layer: int, ring: Ring) -> Tensor | Rows8:
        attended = self._attend(self._write(rows, layer, ring), layer, ring, fp8=False)
        assert isinstance(attended, Tensor), "heads travel in the model's dtype"
        batch, length = len(rows.qkv_BLX), len(ring.index)
        mine_BLNH = self._spread.split(length).scatter(attended.view(batch, length, -1, self.width // self.heads))
        return finished(mine_BLNH.contiguous(), fp8=self.out.is_fp8)

    def _write(self, rows: Projected, layer: int, ring: Ring) -> Tensor | PackedQueries:
        """Keys and values of this rank's heads into the ring; the answer is their queries [B, L, M, H]."""
        split = self._spread.split(len(ring.index))
        q_BLMH, k_BLMH, v_BLMH = split.gathered(split.start_gather(self._turned(rows.qkv_BLX, split, ring)))
        k_BWMH, v_BWMH, _ = ring.span(layer, rounded=False)
        k_BWMH.index_copy_(1, ring.index, k_BLMH)
        v_BWMH.index_copy_(1, ring.index, v_BLMH)
        self._follow(layer, ring)
        return PackedQueries.of(q_BLMH) if self.low_attention and ring.bias is None else q_BLMH

    def _turned(self, qkv_BLX: Tensor, split: TokenSplit, ring: Ring) -> Tensor:
        """q and k normed and turned, and v, of this rank's tokens: [3, B, F*S, N, H]."""
        batch, mine = qkv_BLX.shape[:2]
        found = qkv_BLX.new_empty(3, batch, mine, self.heads, self.width // self.heads)
        everywhere, phases = torch.arange(mine, device=qkv_BLX.device), split.phases(ring.phases)
        for row, qkv_LX in enumerate(qkv_BLX):
            _, k, v = found[:, row]
            queries = write_ring(qkv_LX, self.norm_q, self.norm_k, phases, everywhere, k, v, eps=self.eps)
            assert isinstance(queries, Tensor), "queries are packed where they attend"
            found[0, row] = queries
        return found


class FastSequenceDiT(SequenceDiT):
    """The same over fast blocks, whose layers know the rings and trade tokens themselves."""

    def __init__(self, dit: CausalDiT, spread: SequenceSpread) -> None:
        super().__init__(dit, spread.group)
        self._spread = spread

    def _seen(self, memory: Memory, split: TokenSplit) -> Memory:
        self._spread.tokens = split.tokens
        return memory
