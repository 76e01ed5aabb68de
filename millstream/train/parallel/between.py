"""Exchange of rows between ranks that hold one model and ranks that hold another: latents one way, scores
back.

Each side derives which rank has which rows from the two plans. A block of rows is broadcast by the first of
the ranks that have it, one block after the other, and a rank that needs some of these rows keeps them:
latents are small beside the models that look at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from millstream.parallel.collectives import RankGroup
from millstream.train.parallel.plan import ParallelPlan


class Side(NamedTuple):
    """The ranks of one of two plans."""

    plan: ParallelPlan
    first: int
    """First rank of the side, numbered in the world."""

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.plan.world_size)

    def source(self, place: int) -> int:
        """Return the first rank that has the rows of this place along dp."""
        return self.first + place * self.plan.cp * self.plan.tp

    def rows(self, rank: int, batch: int) -> range:
        share = batch // self.plan.dp
        place = self.plan.place_of(rank - self.first).dp
        return range(place * share, (place + 1) * share)


class _Announced(NamedTuple):
    """Announcement of what follows: a message, and the shape and dtype of a row of each tensor."""

    message: Any
    shapes: list[tuple[torch.Size, torch.dtype]]


class RowExchange:
    def __init__(self, world: RankGroup, sides: tuple[Side, Side], batch: int, device: torch.device) -> None:
        self._world = world
        self._sides = sides
        self._batch = batch
        self._device = device

    def send(self, message: Any, tensors: Sequence[Tensor] = ()) -> None:
        """Send a message and this rank's rows of each tensor to the other side. All ranks of this side call
        it when those of the other call `receive`."""
        me = next(side for side in self._sides if self._world.rank in side.ranks)
        self._carry(
            me, _Announced(message, [(tensor.shape[1:], tensor.dtype) for tensor in tensors]), tensors
        )

    def receive(self) -> tuple[Any, list[Tensor]]:
        """Return the message of the other side's first rank, and this rank's rows of the tensors that all its
        ranks send."""
        other = next(side for side in self._sides if self._world.rank not in side.ranks)
        return self._carry(other, None, ())

    def _carry(
        self, source: Side, announced: _Announced | None, tensors: Sequence[Tensor]
    ) -> tuple[Any, list[Tensor]]:
        said = self._world.gather(announced, "rows")[source.first]
        assert isinstance(said, _Announced), f"rank {source.first} announces rows, said {said}"
        share = self._batch // source.plan.dp
        found = list[list[Tensor]]([] for _ in said.shapes)
        for place in range(source.plan.dp):
            rank = source.source(place)
            for number, (shape, dtype) in enumerate(said.shapes):
                mine = self._world.rank == rank
                rows = (
                    tensors[number].contiguous()
                    if mine
                    else torch.empty(share, *shape, dtype=dtype, device=self._device)
                )
                if rows.numel():
                    self._world.broadcast(rows, source=rank, what="rows")
                if announced is None:
                    found[number].append(rows[self._needed(place * share, share)])
        return said.message, [torch.cat(parts) for parts in found if parts]

    def _needed(self, begin: int, count: int) -> slice:
        """Return the slice of a block of rows that this rank needs."""
        side = next(side for side in self._sides if self._world.rank in side.ranks)
        mine = side.rows(self._world.rank, self._batch)
        return slice(min(max(mine.start - begin, 0), count), min(max(mine.stop - begin, 0), count))
