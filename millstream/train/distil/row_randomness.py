"""The randomness of a turn. What a row draws depends on the seed, the turn, the step and the row's number, so
it is the same on any rank; noise is a session's, so a rollout is the stream that a session of that
seed would be.

Shapes: B rows, K chunks, F frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from millstream.ops.noise import gaussian_rows
from millstream.train.loop import keyed_generator
from millstream.train.noising import Noised, at_levels, spread_levels

HOST = torch.device("cpu")
MOST = 2**62


class RowRandomness:
    def __init__(self, seed: int, turn: str, step: int, numbers: Sequence[int], device: torch.device) -> None:
        self._key = (seed, turn, step)
        self._numbers = numbers
        self._device = device
        seeds = [int(torch.randint(MOST, (), generator=self._row(number, "seed"))) for number in numbers]
        self.seeds_B = torch.tensor(seeds, device=device)

    def shared(self, what: str, count: int = 1) -> list[float]:
        """Evenly from 0 to 1, the same for all rows: what decides which calls are made."""
        return torch.rand(count, generator=keyed_generator(HOST, *self._key, what)).tolist()

    def choice(self, what: str, count: int) -> int:
        assert count >= 1, f"one of {count}"
        return int(self.shared(what)[0] * count)

    def uniform(self, what: str, count: int) -> Tensor:
        """Evenly from 0 to 1 for each row [B, count]."""
        rows = [torch.rand(count, generator=self._row(number, what)) for number in self._numbers]
        return torch.stack(rows).to(self._device)

    def noise(self, shape: Sequence[int], *, epoch: int, chunk: int = 0, step: int = 0) -> Tensor:
        """[B, *shape]. A session's first epoch is 0."""
        return gaussian_rows(shape, self.seeds_B, epoch=epoch, chunk=chunk, step=step)

    def noised(
        self, clean_BFCYX: Tensor, frames_per_chunk: int, shift: float, *, epoch: int, margin: float = 0.0
    ) -> Noised:
        """As `noising.noised`, row by row."""
        assert clean_BFCYX.shape[1] % frames_per_chunk == 0, (
            f"{clean_BFCYX.shape[1]} frames in chunks of {frames_per_chunk}"
        )
        assert len(clean_BFCYX) == len(self._numbers), (
            f"{len(clean_BFCYX)} rows, and lots of {len(self._numbers)}"
        )
        chunks = clean_BFCYX.shape[1] // frames_per_chunk
        level_BF = spread_levels(
            self.uniform(f"levels {epoch}", chunks), frames_per_chunk, shift, margin=margin
        )
        noise = self.noise(clean_BFCYX.shape[1:], epoch=epoch)
        return Noised(at_levels(clean_BFCYX, noise, level_BF), noise, level_BF)

    def _row(self, number: int, what: str) -> torch.Generator:
        return keyed_generator(HOST, *self._key, number, what)
