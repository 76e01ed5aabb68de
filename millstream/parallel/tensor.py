"""Tensor parallel: every rank holds some heads and some hidden units of each block, and two sums put a block together.

Wan norms queries and keys over all heads, so their squares are summed across ranks too: one small sum a block, q and k
together. Cross-attention stays whole on every rank: its keys are read once a prompt, and splitting the rest would cost a
third large sum and a second small one. The key/value ring is split by heads, since those are all a rank has.
Shapes: B batch, L chunk tokens, D width, N heads of this rank, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.models.dit import MLP, CausalDiT, RMSNorm, SelfAttention
from millstream.models.kv import Memory
from millstream.ops.rope import rotate
from millstream.parallel.collectives import RankGroup


class TensorSelfAttention(nn.Module):
    """Some of the heads. Parameters are named as in the whole layer."""

    def __init__(self, whole: SelfAttention, group: RankGroup) -> None:
        super().__init__()
        assert whole.heads % group.size == 0, f"{whole.heads} heads over {group.size} ranks"
        self.heads = whole.heads // group.size
        self._group, self._width = group, whole.q.out_features
        self.q, self.k, self.v = (_columns(layer, group) for layer in (whole.q, whole.k, whole.v))
        self.o = _rows(whole.o, group)
        self.norm_q, self.norm_k = (_share_of_norm(norm, group) for norm in (whole.norm_q, whole.norm_k))

    def remember(self, x_BLD: Tensor, layer: int, memory: Memory) -> None:
        """Only leave this chunk's keys and values."""
        (k,) = self._normed((self.k(x_BLD), self.norm_k))
        memory.write(layer, rotate(self._by_heads(k), memory.phases), self._by_heads(self.v(x_BLD)))

    def forward(self, x_BLD: Tensor, layer: int, memory: Memory) -> Tensor:
        q, k = self._normed((self.q(x_BLD), self.norm_q), (self.k(x_BLD), self.norm_k))
        q, k = (rotate(self._by_heads(x), memory.phases) for x in (q, k))
        attended = memory.attend(layer, q, k, self._by_heads(self.v(x_BLD))).flatten(2)
        return self._group.sum(F.linear(attended, self.o.weight), "attention") + self.o.bias

    def _normed(self, *pairs: tuple[Tensor, RMSNorm]) -> list[Tensor]:
        """Root-mean-square norms over all ranks' heads, with one sum for all of them."""
        squares = torch.stack([x.float().square().sum(dim=-1, keepdim=True) for x, _ in pairs])
        squares = self._group.sum(squares, "norms")
        return [
            (x.float() * (square / self._width + norm.eps).rsqrt() * norm.weight.float()).to(x.dtype)
            for (x, norm), square in zip(pairs, squares, strict=True)
        ]

    def _by_heads(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.unflatten(-1, (self.heads, -1))


class TensorMLP(nn.Module):
    """Some of the hidden units."""

    def __init__(self, whole: MLP, group: RankGroup) -> None:
        super().__init__()
        assert whole.activation == "gelu", f"a block's MLP is gelu, got {whole.activation}"
        self._group = group
        self.up, self.down = _columns(whole.up, group), _rows(whole.down, group)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(x), approximate="tanh")
        return self._group.sum(F.linear(hidden, self.down.weight), "mlp") + self.down.bias


def split_tensors(dit: CausalDiT, group: RankGroup) -> CausalDiT:
    """The same model with this rank's share of every block; what is not its share is let go."""
    for block in dit.blocks:
        block.self_attn = TensorSelfAttention(block.self_attn, group)
        block.ffn = TensorMLP(block.ffn, group)
    return dit


def _columns(layer: nn.Linear, group: RankGroup) -> nn.Linear:
    """This rank's share of a layer's outputs."""
    return linear_of(_share(layer.weight, 0, group), _share(layer.bias, 0, group))


def _rows(layer: nn.Linear, group: RankGroup) -> nn.Linear:
    """This rank's share of a layer's inputs; the bias is whole, and added once, after the sum."""
    return linear_of(_share(layer.weight, 1, group), layer.bias.detach())


def _share_of_norm(norm: RMSNorm, group: RankGroup) -> RMSNorm:
    share = RMSNorm(0, norm.eps)
    share.weight = nn.Parameter(_share(norm.weight, 0, group), requires_grad=False)
    return share


def _share(x: Tensor, dim: int, group: RankGroup) -> Tensor:
    assert x.shape[dim] % group.size == 0, f"{tuple(x.shape)} over {group.size} ranks along {dim}"
    return x.detach().chunk(group.size, dim)[group.place].clone()


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A frozen layer with these parameters."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = (nn.Parameter(x, requires_grad=False) for x in (weight, bias))
    return layer
