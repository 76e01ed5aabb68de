"""One transformer block as six products and two attentions, with one pass over memory between each two.

What a block adds to the residual last is handed to the next one, which adds it while it norms:
`PendingResidual`.
Shapes: L tokens of all rows, F frames of all rows, D width, N heads, H head width, S text tokens, B rows
(sessions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from millstream.core.speed import Speed
from millstream.models.dit import Block, Head
from millstream.models.fast.attention import FastCrossAttention, Ring
from millstream.models.fast.linear import Dense
from millstream.models.fast.spread import ALONE, Spread
from millstream.ops.fp8 import Rows8
from millstream.ops.frame_rows import Addend
from millstream.ops.rows import add_norm, gelu_rows


class PendingResidual(NamedTuple):
    """Addend of the residual that is not added yet, and its gate."""

    y: Addend | None = None
    gate_FD: Tensor | None = None


class FastBlock(nn.Module):
    def __init__(self, plain: Block, speed: Speed, spread: Spread = ALONE) -> None:
        super().__init__()
        self._spread = spread
        self.eps = plain.eps
        self.self_attn = spread.attention(plain.self_attn, speed)
        self.cross_norm = plain.cross_norm
        self.cross_attn = FastCrossAttention(plain.cross_attn, speed)
        self.up = Dense([plain.ffn.up], fp8="mlp" in speed.fp8)
        self.down = spread.down(Dense([plain.ffn.down], fp8="mlp" in speed.fp8))

    def forward(
        self,
        x_LD: Tensor,
        pending: PendingResidual,
        levels_F6D: Tensor,
        layer: int,
        rings: Sequence[Ring],
        k_BSNH: Tensor,
        v_BSNH: Tensor,
    ) -> PendingResidual:
        """Changes `x` in place."""
        _, _, gate1, shift2, scale2, gate2 = levels_F6D.unbind(1)
        attended = self.self_attn(self._entered(x_LD, pending, levels_F6D), layer, rings)
        told = self._told(x_LD, PendingResidual(attended, gate1), k_BSNH, v_BSNH)
        thought = self._spread.normed(
            x_LD, *told, scale2, shift2, eps=self.eps, fp8=self.up.is_fp8, what="mlp"
        )
        return PendingResidual(self.down(self._activated(thought)), gate2)

    def remember(
        self, x_LD: Tensor, pending: PendingResidual, levels_F6D: Tensor, layer: int, rings: Sequence[Ring]
    ) -> None:
        """Write keys and values to the rings, and compute nothing else."""
        self.self_attn.remember(self._entered(x_LD, pending, levels_F6D), layer, rings)

    def _entered(self, x_LD: Tensor, pending: PendingResidual, levels_F6D: Tensor) -> Tensor | Rows8:
        shift, scale, *_ = levels_F6D.unbind(1)
        fp8 = self.self_attn.is_fp8
        return self._spread.normed(x_LD, *pending, scale, shift, eps=self.eps, fp8=fp8, what="attention")

    def _told(
        self, x_LD: Tensor, pending: PendingResidual, k_BSNH: Tensor, v_BSNH: Tensor
    ) -> PendingResidual:
        """Add what is pending to the residual, and cross-attend to the prompt. Return the answer as pending;
        nothing is pending where its product adds the answer to the residual itself."""
        cross = self.cross_attn
        norm = self.cross_norm
        later = None if cross.is_fp8 else cross.out.bias
        affine = (norm.weight, norm.bias)
        rows = self._spread.rows
        x = add_norm(x_LD, *pending, *affine, eps=norm.eps, fp8=cross.is_fp8, later_D=later, rows=rows)
        if isinstance(x, Rows8):
            return PendingResidual(cross(x, k_BSNH, v_BSNH))
        cross.add_to(x_LD, x, k_BSNH, v_BSNH)
        return PendingResidual()

    def _activated(self, x: Tensor | Rows8) -> Tensor | Rows8:
        return gelu_rows(self.up(x)) if isinstance(x, Rows8) else self.up.with_gelu(x)


class FastHead(Head):
    """From tokens back to latent cells: the norm and its modulation as one pass over memory."""

    def __init__(self, plain: Head) -> None:
        """Takes its weights over."""
        nn.Module.__init__(self)
        self.config = plain.config
        self.modulation = plain.modulation
        self.proj = plain.proj

    def project(self, x_BFTD: Tensor, time_BFD: Tensor) -> Tensor:
        shift_FD, scale_FD = (self.modulation + time_BFD.unsqueeze(2)).flatten(0, 1).unbind(1)
        normed = add_norm(
            x_BFTD.flatten(0, 2), None, None, scale_FD, shift_FD, eps=self.config.eps, fp8=False
        )
        assert isinstance(normed, Tensor)
        cells: Tensor = self.proj(normed)
        return cells.unflatten(0, x_BFTD.shape[:3])
