"""How fast blocks are spread over ranks: here, not at all. `parallel/` has the other ways.

Shapes: B rows (sessions), F frames, T tokens a frame, L = B*F*T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from millstream.core.speed import Speed
from millstream.models.dit import SelfAttention
from millstream.models.fast.attention import FastSelfAttention
from millstream.models.fast.linear import Dense
from millstream.ops.fp8 import Rows8
from millstream.ops.frame_rows import Addend, RowsOfFrames
from millstream.ops.rows import add_norm

Run = Callable[[], object]
Record = Callable[[Run], Run]


class Spread:
    """Whole blocks, and all tokens between them."""

    rows: RowsOfFrames | None = None
    """Which of the call's rows are between the products here; None for all."""

    def attention(self, plain: SelfAttention, speed: Speed) -> FastSelfAttention:
        return FastSelfAttention(plain, speed)

    def down(self, own: Dense) -> Dense:
        """The MLP's second product."""
        return own

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
        """`add_norm`, and of all tokens that the next product takes; `what` it is part of."""
        return add_norm(x_LD, y, gate_FD, scale_FD, shift_FD, eps=eps, fp8=fp8, rows=self.rows)

    def recorder(self, record: Record) -> Record:
        """Return what records the calls of blocks that are spread this way."""
        return record

    def enter(self, x_BFTD: Tensor) -> Tensor:
        """The rows of the residual that blocks work on here, in memory that they may write."""
        return x_BFTD.flatten(0, 2)

    def write_back(self, x_BFTD: Tensor, mine_LD: Tensor) -> None:
        """Write the rows that blocks have changed back to the residual, with those of all ranks."""


ALONE = Spread()
