"""Tensor parallel: every rank holds some heads and some hidden units of each block, and two sums put a block
together.

Wan norms queries and keys over all heads, so their squares are summed across ranks too: one small sum a
block, q and k together. Cross-attention stays whole on every rank: its keys are read once a prompt, and
splitting the rest would cost a third large sum and a second small one. The key/value ring is split by heads,
since those are all a rank has.
Shapes: B batch, L chunk tokens, D width, N heads of this rank, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.models.adapters import plain_of, product_of
from millstream.models.dit import MLP, CausalDiT, RMSNorm, SelfAttention
from millstream.models.kv import Memory
from millstream.ops.norms import scaled, sum_of_squares
from millstream.ops.rope import rotate
from millstream.parallel.collectives import RankGroup


class TensorSelfAttention(nn.Module):
    """Some of the heads. Parameters are named as in the whole layer."""

    def __init__(self, share: SelfAttention, group: RankGroup) -> None:
        super().__init__()
        self.heads = share.heads // group.size
        q = plain_of(share.q)
        self._group = group
        self._width = q.in_features
        held = q.weight.shape[0] * group.size
        assert held == self._width, (
            f"a share of {held} of {self._width} heads' outputs over {group.size} ranks"
        )
        self.q = share.q
        self.k = share.k
        self.v = share.v
        self.o = share.o
        self.norm_q = share.norm_q
        self.norm_k = share.norm_k

    def remember(self, x_BLD: Tensor, layer: int, memory: Memory) -> None:
        """Write this chunk's keys and values to memory, and attend to nothing."""
        (k,) = self._normed((self.k(x_BLD), self.norm_k))
        memory.write(layer, rotate(self._by_heads(k), memory.phases), self._by_heads(self.v(x_BLD)))

    def forward(self, x_BLD: Tensor, layer: int, memory: Memory) -> Tensor:
        q, k = self._normed((self.q(x_BLD), self.norm_q), (self.k(x_BLD), self.norm_k))
        q, k = (rotate(self._by_heads(x), memory.phases) for x in (q, k))
        attended = memory.attend(layer, q, k, self._by_heads(self.v(x_BLD))).flatten(2)
        return self._group.sum(product_of(self.o, attended), "attention") + plain_of(self.o).bias

    def _normed(self, *pairs: tuple[Tensor, RMSNorm]) -> list[Tensor]:
        """Root-mean-square norms over all ranks' heads, with one sum for all of them."""
        squares = self._group.sum_for_parts(torch.stack([sum_of_squares(x) for x, _ in pairs]), "norms")
        return [
            scaled(x, (square / self._width + norm.eps).rsqrt(), norm.weight)
            for (x, norm), square in zip(pairs, squares, strict=True)
        ]

    def _by_heads(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.unflatten(-1, (self.heads, -1))


class TensorMLP(nn.Module):
    """Some of the hidden units."""

    def __init__(self, share: MLP, group: RankGroup) -> None:
        super().__init__()
        assert share.activation == "gelu", f"a block's MLP is gelu, got {share.activation}"
        self._group = group
        self.up = share.up
        self.down = share.down

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(x), approximate="tanh")
        return self._group.sum(product_of(self.down, hidden), "mlp") + plain_of(self.down).bias


def connect_tensors(dit: CausalDiT, group: RankGroup) -> None:
    """Have every block, whose parameters are this rank's share (`parallel/shares.py`), work with those of the
    others."""
    for block in dit.blocks:
        block.set_submodule("self_attn", TensorSelfAttention(block.self_attn, group))
        block.set_submodule("ffn", TensorMLP(block.ffn, group))
