"""Which rows of a batch are this rank's, of those that train one model together. One process has all of them.

Everybody draws what is random for the whole batch and keeps what belongs to its own rows, so that a step is the same however
many ranks share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.parallel.collectives import RankGroup


@dataclass(frozen=True, slots=True)
class BatchShare:
    group: RankGroup

    @property
    def ranks(self) -> int:
        return self.group.size

    @property
    def is_first(self) -> bool:
        """Whether this rank writes and says what there is."""
        return self.group.place == 0

    def part(self, whole: Tensor) -> Tensor:
        """This rank's rows of a whole batch."""
        return whole.chunk(self.ranks)[self.group.place]

    def normal(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Noise for this rank's rows, of which there are `shape[0]`; so it is of the next two."""
        return self.part(torch.randn(self._whole(shape), generator=generator, device=generator.device))

    def uniform(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return self.part(torch.rand(self._whole(shape), generator=generator, device=generator.device))

    def integers(self, below: int, rows: int, generator: torch.Generator) -> Tensor:
        return self.part(torch.randint(below, (rows * self.ranks,), generator=generator, device=generator.device))

    def collect(self, rows: Tensor) -> Tensor:
        """The whole batch, from everybody's rows."""
        return rows if self.ranks == 1 else self.group.collect_rows(rows, "rows")

    def mean(self, x: Tensor) -> Tensor:
        """Over the ranks."""
        return self.group.sum(x.detach().clone(), "mean") / self.ranks

    def any(self, asked: bool, device: torch.device) -> bool:
        """Whether anybody asks."""
        return asked if self.ranks == 1 else bool(self.group.sum(torch.tensor(float(asked), device=device), "asked") > 0)

    def wait(self) -> None:
        """Until everybody is here."""
        self.group.gather(None, "here")

    def _whole(self, shape: Sequence[int]) -> tuple[int, ...]:
        return shape[0] * self.ranks, *shape[1:]


ALONE = BatchShare(RankGroup("alone", "training", (0,), 0, None))
