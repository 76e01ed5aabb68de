"""Share of a batch that is this rank's, among ranks that train one model together. One process has the whole
batch.

All ranks draw what is random for the whole batch and keep their own rows, so that a step is the same however
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
        """True if this rank writes files and reports."""
        return self.group.place == 0

    def part(self, whole: Tensor) -> Tensor:
        """Return this rank's rows of a whole batch."""
        return whole.chunk(self.ranks)[self.group.place]

    def normal(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw normal noise for this rank's rows, of which there are `shape[0]`; `uniform` and `integers`
        likewise."""
        return self.part(torch.randn(self._whole(shape), generator=generator, device=generator.device))

    def uniform(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return self.part(torch.rand(self._whole(shape), generator=generator, device=generator.device))

    def integers(self, below: int, rows: int, generator: torch.Generator) -> Tensor:
        return self.part(
            torch.randint(below, (rows * self.ranks,), generator=generator, device=generator.device)
        )

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over the ranks."""
        return self.group.sum(x.detach().clone(), "mean") / self.ranks

    def any(self, asked: bool, device: torch.device) -> bool:
        """Return whether any rank asks."""
        return (
            asked
            if self.ranks == 1
            else bool(self.group.sum(torch.tensor(float(asked), device=device), "asked") > 0)
        )

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.group.gather(None, "here")

    def _whole(self, shape: Sequence[int]) -> tuple[int, ...]:
        return shape[0] * self.ranks, *shape[1:]


ALONE = BatchShare(RankGroup("alone", "training", (0,), 0, None))
