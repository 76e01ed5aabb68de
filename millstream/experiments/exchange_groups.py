"""Have ranks of sequence parallel exchange heads in groups: the exchange hides behind the projections.

While one group of heads travels, the next is projected. Queries and keys are normed over all heads, which is
known only after the last group. A norm is one number a token, so heads travel as they are and the numbers
follow in one small collective; the rank that received the heads norms and turns them.
Shapes: B batch, F frames, S tokens a frame on this rank, L all tokens, P ranks, D width, M heads of this rank
of N, m of them in one group, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.topology import check_exchange_groups
from millstream.models.dit import CausalDiT, RMSNorm, SelfAttention
from millstream.models.typed_modules import TypedModuleList
from millstream.models.weights.fill import frozen
from millstream.ops.rope import rotate
from millstream.parallel.collectives import RankGroup
from millstream.parallel.sequence import SequenceMemory


class OverlappedSelfAttention(nn.Module):
    """Takes the place of a layer that has all heads, for a rank that has some tokens."""

    def __init__(self, whole: SelfAttention, group: RankGroup, exchange_groups: int) -> None:
        super().__init__()
        assert whole.heads % group.size == 0, f"{whole.heads} heads over {group.size} ranks"
        self.heads = whole.heads
        self._group = group
        self._width = whole.q.out_features
        self.o = whole.o
        self.norm_q = whole.norm_q
        self.norm_k = whole.norm_k
        shape = (3, group.size, exchange_groups, whole.heads // group.size // exchange_groups, -1)
        weight = torch.stack([layer.weight.detach() for layer in (whole.q, whole.k, whole.v)])
        bias = torch.stack([layer.bias.detach() for layer in (whole.q, whole.k, whole.v)])
        self.parts = TypedModuleList(
            _linear_of(rows.flatten(0, 3).contiguous(), numbers.flatten())
            for rows, numbers in zip(
                weight.unflatten(1, (*shape[1:4], -1)).unbind(2), bias.view(shape).unbind(2), strict=True
            )
        )

    def remember(self, x_BLD: Tensor, layer: int, memory: SequenceMemory) -> None:
        """Write this chunk's keys and values to memory, and attend to nothing."""
        (k_BLMH,), v_BLMH = self._projected(x_BLD, memory, (self.norm_k,))
        memory.inner.write(layer, k_BLMH, v_BLMH)

    def forward(self, x_BLD: Tensor, layer: int, memory: SequenceMemory) -> Tensor:
        (q_BLMH, k_BLMH), v_BLMH = self._projected(x_BLD, memory, (self.norm_q, self.norm_k))
        return self.o(memory.split.scatter(memory.inner.attend(layer, q_BLMH, k_BLMH, v_BLMH)).flatten(2))

    def _projected(
        self, x_BLD: Tensor, memory: SequenceMemory, norms: tuple[RMSNorm, ...]
    ) -> tuple[list[Tensor], Tensor]:
        """All tokens of this rank's heads: what `norms` are for, normed and turned, and the values."""
        kinds = len(norms) + 1
        split = memory.split
        squares = x_BLD.new_zeros((*x_BLD.shape[:2], len(norms)), dtype=torch.float32)
        travelling = []
        for part in self.parts:
            wanted = (
                part.out_features // 3 * kinds
            )  # rows of q, k and v lie in this order; without q, those after it
            projected = F.linear(x_BLD, part.weight[-wanted:], part.bias[-wanted:])
            by_kind = projected.unflatten(-1, (kinds, -1))
            squares = squares + by_kind[:, :, :-1].float().square().sum(dim=-1)
            heads = by_kind.unflatten(-1, (self.heads // len(self.parts), -1))  # B F*S kinds P*m H
            travelling.append(split.start_gather(heads.movedim(2, 0)))
        everywhere = split.whole(squares.unflatten(1, (split.frames, -1)), "norms").flatten(1, 2)  # B L norms
        *normed, v_BLMH = torch.cat([split.gathered(each) for each in travelling], dim=3)
        phases = memory.inner.phases
        return [
            rotate(self._normed(x, norm, squares_BL[:, :, None, None]), phases)
            for x, norm, squares_BL in zip(normed, norms, everywhere.unbind(-1), strict=True)
        ], v_BLMH

    def _normed(self, x_BLMH: Tensor, norm: RMSNorm, squares_BL11: Tensor) -> Tensor:
        weight_MH = norm.weight.view(self._group.size, *x_BLMH.shape[2:])[self._group.place]
        scale = (squares_BL11 / self._width + norm.eps).rsqrt()
        return (x_BLMH.float() * scale * weight_MH.float()).to(x_BLMH.dtype)


def overlap_exchange(dit: CausalDiT, group: RankGroup, exchange_groups: int) -> None:
    """Have every block project and exchange its heads in so many groups. Plain blocks alone: a fast one's q,
    k and v are one matmul."""
    check_exchange_groups(dit.config.heads // group.size, exchange_groups)
    for block in dit.blocks:
        block.set_submodule("self_attn", OverlappedSelfAttention(block.self_attn, group, exchange_groups))


def _linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight = frozen(weight)
    layer.bias = frozen(bias)
    return layer
