"""Sequence parallel (Ulysses): every rank holds some tokens of each frame; around attention they trade tokens
for heads.

Everything but attention is done token by token, so a rank does it for its own. For attention a rank gets all
tokens of some heads, and the key/value ring is split by heads. The trade is a property of the memory, so the
model's layers stay as they are. Where a frame's tokens do not divide, the last rank's are filled up and the
filling is dropped before attention.
Shapes: B batch, F frames, T tokens a frame, S of them on this rank, L all F*T tokens, P ranks, D width, N all
heads, M = N/P heads of this rank, H head width, C things exchanged together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.models.dit import CrossKV, Embedded
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import Memory
from millstream.ops.rope import Phases
from millstream.parallel.collectives import PendingCollective, RankGroup
from millstream.parallel.mesh_dit import MeshDiT


@dataclass(frozen=True, slots=True)
class TokenSplit:
    """Tokens of a chunk that each rank has."""

    group: RankGroup
    frames: int
    tokens: int
    """Tokens of one frame."""

    @property
    def share(self) -> int:
        """Tokens of one frame that each rank has, filling included."""
        return -(-self.tokens // self.group.size)

    def mine(self, x: Tensor, dim: int) -> Tensor:
        """This rank's tokens along `dim`, which counts a frame's."""
        assert x.shape[dim] == self.tokens, f"{x.shape[dim]} tokens of a frame of {self.tokens}"
        filling = self.share * self.group.size - self.tokens
        if filling:
            x = F.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, filling))
        return x.narrow(dim, self.group.place * self.share, self.share)

    def whole(self, x_BFSE: Tensor, what: str) -> Tensor:
        """Return all tokens, from those of all ranks, [B, F, T, E]."""
        parts = self.group.collect(x_BFSE, what)  # P B F S E
        return parts.movedim(0, 2).flatten(2, 3)[:, :, : self.tokens]

    def start_gather(self, mine_CBLNH: Tensor) -> PendingCollective:
        """Begin to trade this rank's tokens of all heads for all tokens of its heads."""
        parts = mine_CBLNH.unflatten(3, (self.group.size, -1)).movedim(3, 0)  # P C B F*S M H
        return self.group.start_exchange(parts, "tokens for heads")

    def gathered(self, pending: PendingCollective) -> Tensor:
        """Return what was gathered, [C, B, L, M, H]."""
        parts = pending.wait().unflatten(3, (self.frames, -1))  # P C B F S M H
        return parts.movedim(0, 3).flatten(3, 4)[:, :, :, : self.tokens].flatten(2, 3)

    def scatter(self, x_BLMH: Tensor) -> Tensor:
        """Trade back: return this rank's tokens of all heads, [B, F*S, N, H]."""
        filling = self.share * self.group.size - self.tokens
        x = x_BLMH.unflatten(1, (self.frames, -1))
        x = F.pad(x, (0, 0, 0, 0, 0, filling)) if filling else x
        parts = x.unflatten(2, (self.group.size, -1)).movedim(2, 0).flatten(2, 3)  # P B F*S M H
        return self.group.exchange(parts, "heads for tokens").movedim(0, 2).flatten(2, 3)


class SequenceMemory:
    """A memory of some heads, seen by layers that have some tokens."""

    def __init__(self, inner: Memory, split: TokenSplit) -> None:
        self.inner = inner
        self.split = split
        self._phases = Phases(self._mine(inner.phases.cos), self._mine(inner.phases.sin))

    @property
    def phases(self) -> Phases:
        return self._phases

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> object:
        k, v = self.split.gathered(self.split.start_gather(torch.stack((k_BLNH, v_BLNH))))
        return self.inner.write(layer, k, v)

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        q, k, v = self.split.gathered(self.split.start_gather(torch.stack((q_BLNH, k_BLNH, v_BLNH))))
        return self.split.scatter(self.inner.attend(layer, q, k, v))

    def _mine(self, phase: Tensor) -> Tensor:
        """[..., L, 1, H/2] to [..., F*S, 1, H/2]."""
        by_frame = phase.unflatten(-3, (self.split.frames, self.split.tokens))
        return self.split.mine(by_frame, by_frame.ndim - 3).flatten(-4, -3)


class SharedHeadsDiT(MeshDiT):
    """A DiT whose blocks have all heads, while a rank's ring has some. Fast blocks share out the tokens by
    themselves."""

    @property
    def cached_heads(self) -> int:
        assert self.dit.cached_heads % self.stage.size == 0, (
            f"{self.dit.cached_heads} heads over {self.stage.size} ranks"
        )
        return self.dit.cached_heads // self.stage.size


class SequenceDiT(SharedHeadsDiT):
    """A DiT over this rank's tokens. It takes and returns whole latents, so callers do not notice."""

    def forward(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor:
        embedded = self.dit.embed(latents_BFCYX, level_BF, entries)
        split = self._split(embedded)
        with self.stage.inside_blocks():
            x_BFSD = self.dit.blocks(
                split.mine(embedded.x_BFTD, 2), embedded.levels_BF6D, SequenceMemory(memory, split), cross
            )
            cells = split.whole(self.dit.head.project(x_BFSD, embedded.time_BFD), "cells")
        return self.dit.head.unpatch(cells, embedded.grid)

    def commit(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> None:
        embedded = self.dit.embed(latents_BFCYX, level_BF, entries)
        split = self._split(embedded)
        with self.stage.inside_blocks():
            self.dit.blocks.remember(
                split.mine(embedded.x_BFTD, 2), embedded.levels_BF6D, SequenceMemory(memory, split), cross
            )

    def _split(self, embedded: Embedded) -> TokenSplit:
        return TokenSplit(self.stage, *embedded.x_BFTD.shape[1:3])
