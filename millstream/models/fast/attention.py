"""Attention for the fast path: q, k and v as one product, written into the rings in the same pass that norms
and turns them.

Takes the plain layers' weights over. Inputs and answers may be e4m3, as the products before and after want
them. Self-attention may be in 8 bits throughout, over the ring's packed copy; a bias on the past is for the
other kind alone.
Shapes: L tokens of all rows, D width, N heads, H head width, S text tokens, B rows (sessions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from millstream.core.speed import Speed
from millstream.models.dit import CrossAttention, SelfAttention
from millstream.models.fast.linear import Dense
from millstream.models.kv import PaddedSpan
from millstream.models.quantised_window import PackedWindow
from millstream.ops.attention import AttentionShare, attend, attend_in_shares
from millstream.ops.fp8 import Rows8
from millstream.ops.frame_rows import Addend
from millstream.ops.low_attention import attend_packed
from millstream.ops.quantised_kv import PackedQueries
from millstream.ops.ring_write import write_ring
from millstream.ops.rope import Phases
from millstream.ops.rows import finish_attention, norm_query
from millstream.ops.waves import waves_of


class Ring(Protocol):
    """Interface of a row's `KVRing`, as far as it is needed here. Its slots are written by this module."""

    @property
    def index(self) -> Tensor: ...

    @property
    def phases(self) -> Phases: ...

    @property
    def bias(self) -> Tensor | None: ...

    @property
    def packed(self) -> PackedWindow | None: ...

    def span(self, layer: int, *, rounded: bool) -> PaddedSpan: ...

    def written_in_place(self, layer: int) -> None: ...


class Projected(NamedTuple):
    """Projections q, k and v of one ring's rows, side by side."""

    qkv_BLX: Tensor
    means_2BL: Tensor | None
    """Mean squares of q and k over all heads; None unless other ranks hold some of the heads."""


class FastSelfAttention(nn.Module):
    def __init__(self, plain: SelfAttention, speed: Speed) -> None:
        super().__init__()
        self.width = plain.q.in_features
        """Width of all heads together."""
        self.heads = plain.q.out_features * plain.heads // self.width
        self.eps = plain.norm_q.eps
        self.round_keys = speed.round_keys
        self.even_waves = speed.even_waves
        self.low_attention = speed.low_attention
        self.qkv = Dense([plain.q, plain.k, plain.v], fp8="qkv" in speed.fp8)
        self.out = Dense([plain.o], fp8="out" in speed.fp8)
        self.norm_q = plain.norm_q.weight
        self.norm_k = plain.norm_k.weight

    @property
    def is_fp8(self) -> bool:
        """True if the input must come as e4m3 rows (`Rows8`)."""
        return self.qkv.is_fp8

    def forward(self, x: Tensor | Rows8, layer: int, rings: Sequence[Ring]) -> Addend:
        parts = zip(rings, self._rows(x, layer, rings), strict=True)
        # one after the other: two may be the same ring at two times
        return self.out(joined([self._answer(rows, layer, ring) for ring, rows in parts]))

    def _answer(self, rows: Projected, layer: int, ring: Ring) -> Tensor | Rows8:
        """Write one ring's rows, and return its attention."""
        return self._attend(self._write(rows, layer, ring), layer, ring, fp8=self.out.is_fp8)

    def remember(self, x: Tensor | Rows8, layer: int, rings: Sequence[Ring]) -> None:
        """Write keys and values to the rings, and attend to nothing."""
        for ring, rows in zip(rings, self._rows(x, layer, rings), strict=True):
            self._write(rows, layer, ring)

    def _rows(self, x: Tensor | Rows8, layer: int, rings: Sequence[Ring]) -> list[Projected]:
        """q, k and v of each ring's rows."""
        batches = [len(ring.span(layer, rounded=False).k_BWNH) for ring in rings]
        qkv_LX = self.qkv(x)
        parts = qkv_LX.unflatten(0, (sum(batches), -1)).split(batches)
        means_2L = self._means(qkv_LX)
        means = (
            [None] * len(rings)
            if means_2L is None
            else means_2L.unflatten(1, (sum(batches), -1)).split(batches, dim=1)
        )
        return [Projected(*each) for each in zip(parts, means, strict=True)]

    def _means(self, qkv_LX: Tensor) -> Tensor | None:
        """Return the mean squares of q and k over all heads, [2, L]; None unless other ranks hold some of the
        heads."""
        return None

    def _write(self, rows: Projected, layer: int, ring: Ring) -> Tensor | PackedQueries:
        """Keys and values into the ring; the answer is the queries [B, L, N, H]."""
        k_BWNH, v_BWNH, _ = ring.span(layer, rounded=False)
        packs = self.low_attention and ring.bias is None
        means_2BL = None if rows.means_2BL is None else rows.means_2BL.contiguous()
        q_BLNH = write_ring(
            rows.qkv_BLX,
            self.norm_q,
            self.norm_k,
            ring.phases,
            ring.index,
            k_BWNH,
            v_BWNH,
            eps=self.eps,
            packs=packs,
            means_2BL=means_2BL,
        )
        self._follow(layer, ring)
        return q_BLNH

    def _follow(self, layer: int, ring: Ring) -> None:
        """Update what is derived from a layer's keys and values, after they were written to their slots."""
        k_BWNH, v_BWNH, _ = ring.span(layer, rounded=False)
        ring.written_in_place(layer)
        if self.low_attention:  # with a bias too: who comes next may have none
            assert ring.packed is not None, "a ring is packed before blocks walk over it"
            ring.packed.pack_placed(layer, k_BWNH, v_BWNH, ring.index)

    def _attend(self, q_BLNH: Tensor | PackedQueries, layer: int, ring: Ring, *, fp8: bool) -> Tensor | Rows8:
        if isinstance(q_BLNH, PackedQueries):
            return self._attend_packed(q_BLNH, layer, ring, fp8=fp8)
        k, v, num_zeros = ring.span(layer, rounded=self.round_keys and ring.bias is None)
        waves = waves_of(q_BLNH, k) if self.even_waves and ring.bias is None else None
        if waves is None and not num_zeros:
            return finished(attend(q_BLNH, k, v, ring.bias), fp8=fp8)
        return finish_attention(attend_in_shares(q_BLNH, k, v, waves), num_zeros, fp8=fp8)

    def _attend_packed(self, q_BLNH: PackedQueries, layer: int, ring: Ring, *, fp8: bool) -> Tensor | Rows8:
        k_BWNH = ring.span(layer, rounded=False).k_BWNH
        assert ring.packed is not None, "queries are packed where keys are"
        out = attend_packed(q_BLNH, ring.packed.layer(layer), k_BWNH.shape[1], dtype=k_BWNH.dtype)
        return finished(out, fp8=fp8)


class FastCrossAttention(nn.Module):
    def __init__(self, plain: CrossAttention, speed: Speed) -> None:
        super().__init__()
        self.heads = plain.heads
        self.eps = plain.norm_q.eps
        self.q = Dense([plain.q], fp8="cross" in speed.fp8)
        self.out = Dense([plain.o], fp8="cross" in speed.fp8)
        self.norm_q = plain.norm_q.weight
        self.k = plain.k
        self.v = plain.v
        self.norm_k = plain.norm_k

    @property
    def is_fp8(self) -> bool:
        """True if the input must come as e4m3 rows (`Rows8`)."""
        return self.q.is_fp8

    def key_value(self, text_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a prompt, in full precision; called once for each prompt."""
        k = self.norm_k(self.k(text_BSD)).unflatten(-1, (self.heads, -1))
        return k, self.v(text_BSD).unflatten(-1, (self.heads, -1))

    def forward(self, x: Tensor | Rows8, k_BSNH: Tensor, v_BSNH: Tensor) -> Tensor:
        return self.out(self._attended(x, k_BSNH, v_BSNH))

    def add_to(self, residual_LD: Tensor, x: Tensor, k_BSNH: Tensor, v_BSNH: Tensor) -> None:
        """Add the answer to the residual, which has the last product's bias already. An e4m3 product
        cannot."""
        answer = self._attended(x, k_BSNH, v_BSNH)
        assert isinstance(answer, Tensor)
        residual_LD.addmm_(answer, self.out.weight.t())

    def _attended(self, x: Tensor | Rows8, k_BSNH: Tensor, v_BSNH: Tensor) -> Tensor | Rows8:
        q_LD = norm_query(self.q(x), self.norm_q, eps=self.eps)
        out = attend(q_LD.view(len(k_BSNH), -1, self.heads, k_BSNH.shape[-1]), k_BSNH, v_BSNH)
        return finished(out, fp8=self.out.is_fp8)


def finished(out_BLNH: Tensor, *, fp8: bool) -> Tensor | Rows8:
    """Return attention that was computed in one part, in the form that the next product takes."""
    return finish_attention([AttentionShare(out_BLNH.flatten(2)[None], None)], 0, fp8=fp8)


def joined(parts: Sequence[Tensor | Rows8]) -> Tensor | Rows8:
    """Rows of several sessions as one."""
    if len(parts) == 1:
        return parts[0]
    rows = [part for part in parts if isinstance(part, Rows8)]
    if rows:
        return Rows8(torch.cat([row.values_LI for row in rows]), torch.cat([row.scales_L1 for row in rows]))
    return torch.cat([part for part in parts if isinstance(part, Tensor)])
