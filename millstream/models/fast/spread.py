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
from millstream.ops.frame_rows import RowsOfFrames

Run = Callable[[], object]
Record = Callable[[Run], Run]


class Spread:
    """Whole blocks, and all tokens between them."""

    rows: RowsOfFrames | None = None
    """Which of the call's rows are between the products here; None for all."""

    def attention(self, plain: SelfAttention, speed: Speed) -> FastSelfAttention:
        return FastSelfAttention(plain, speed)

    def up(self, own: Dense) -> Dense:
        """The MLP's first product."""
        return own

    def down(self, own: Dense) -> Dense:
        """Its second one."""
        return own

    def recorder(self, record: Record) -> Record:
        """What records blocks that are spread so."""
        return record

    def enter(self, x_BFTD: Tensor) -> Tensor:
        """The rows of the residual that blocks work on here, in memory that they may write."""
        return x_BFTD.flatten(0, 2)

    def leave(self, x_BFTD: Tensor, mine_LD: Tensor) -> None:
        """Put what blocks have made of them back, with everybody's."""


ALONE = Spread()
