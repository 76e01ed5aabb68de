"""Rows on their way between ranks that hold one model and ranks that hold another: latents there, scores back.

Both sides know whose rows are whose from their plans. A block of rows is broadcast by the first of the ranks that have it, one
after the other, and whoever needs some of them keeps these: latents are small beside the models that look at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from millstream.parallel.collectives import RankGroup
from millstream.parallel.training.plan import ParallelPlan


class Side(NamedTuple):
    """The ranks of one of two plans."""

    plan: ParallelPlan
    first: int
    """Rank, in the world."""

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.plan.world_size)

    def source(self, place: int) -> int:
        """The first rank with the rows of that place along dp."""
        return self.first + place * self.plan.cp * self.plan.tp

    def rows(self, rank: int, batch: int) -> range:
        share, place = batch // self.plan.dp, self.plan.place_of(rank - self.first).dp
        return range(place * share, (place + 1) * share)


class _Announced(NamedTuple):
    """What comes: something to read, and the shapes of a row of each tensor."""

    message: Any
    shapes: list[tuple[torch.Size, torch.dtype]]


class RowExchange:
    def __init__(self, world: RankGroup, sides: tuple[Side, Side], batch: int, device: torch.device) -> None:
        self._world, self._sides, self._batch, self._device = world, sides, batch, device

    def send(self, message: Any, tensors: Sequence[Tensor] = ()) -> None:
        """This rank's rows of each, to the other side. All ranks of this one call it when those of the other `receive`."""
        me = next(side for side in self._sides if self._world.rank in side.ranks)
        self._carry(me, _Announced(message, [(tensor.shape[1:], tensor.dtype) for tensor in tensors]), tensors)

    def receive(self) -> tuple[Any, list[Tensor]]:
        """What the other side's first rank says, and this rank's rows of what they all send."""
        other = next(side for side in self._sides if self._world.rank not in side.ranks)
        return self._carry(other, None, ())

    def _carry(self, source: Side, announced: _Announced | None, tensors: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
        said = self._world.gather(announced, "rows")[source.first]
        assert isinstance(said, _Announced), f"rank {source.first} announces rows, said {said}"
        share, found = self._batch // source.plan.dp, list[list[Tensor]]([] for _ in said.shapes)
        for place in range(source.plan.dp):
            rank = source.source(place)
            for number, (shape, dtype) in enumerate(said.shapes):
                mine = self._world.rank == rank
                rows = tensors[number].contiguous() if mine else torch.empty(share, *shape, dtype=dtype, device=self._device)
                if rows.numel():
                    self._world.broadcast(rows, source=rank, what="rows")
                if announced is None:
                    found[number].append(rows[self._needed(place * share, share)])
        return said.message, [torch.cat(parts) for parts in found if parts]

    def _needed(self, begin: int, count: int) -> slice:
        """Of a block of rows, those that this rank has."""
        side = next(side for side in self._sides if self._world.rank in side.ranks)
        mine = side.rows(self._world.rank, self._batch)
        return slice(min(max(mine.start - begin, 0), count), min(max(mine.stop - begin, 0), count))
