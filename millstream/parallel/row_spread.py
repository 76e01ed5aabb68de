"""Fast blocks whose ranks share out the tokens between matmuls: runs of a call's rows, whatever frame they
are of.

A call of several sessions, whose rows have several prompts, is not shared out: every rank has all of it.
Shapes: B rows (sessions), F frames, T tokens a frame, L tokens of a call, D width.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from millstream.models.fast.spread import Record, Spread
from millstream.ops.frame_rows import RowsOfFrames
from millstream.parallel.collectives import RankGroup


class RowSpread(Spread):
    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self.count = 0
        self.share = 0
        """Rows of the call, and how many of them each rank has; 0 if each has all."""

    def recorder(self, record: Record) -> Record:
        return self.group.recorder(record)

    def enter(self, x_BFTD: Tensor) -> Tensor:
        batch, _, tokens = x_BFTD.shape[:3]
        x_LD = x_BFTD.flatten(0, 2)
        self.count = len(x_LD)
        self.share = 0
        self.rows = None
        if batch > 1:
            return x_LD
        self.share = -(-len(x_LD) // self.group.size)
        self.rows = RowsOfFrames(tokens, self.group.place * self.share)
        return self.filled(x_LD).narrow(0, self.rows.first, self.share).clone()

    def write_back(self, x_BFTD: Tensor, mine_LD: Tensor) -> None:
        if self.share:
            x_BFTD.flatten(0, 2).copy_(self.collected(mine_LD, "residual"))

    def collected(self, mine_LD: Tensor, what: str) -> Tensor:
        """Return the rows of all ranks."""
        return self.group.collect_rows(mine_LD, what)[: self.count]

    def filled(self, x_LD: Tensor) -> Tensor:
        """Fill up to as many rows as ranks share evenly."""
        filling = self.share * self.group.size - len(x_LD)
        return F.pad(x_LD, (0, 0) * (x_LD.ndim - 1) + (0, filling)) if filling else x_LD
