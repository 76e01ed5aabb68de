"""Whole sequences under a block-causal mask, for training: the same rules a ring keeps while streaming.

No mask is ever built. The sequence is cut where the mask would change, and each piece attends to the runs of
frames it may see, at full speed and without work on what it may not.
Shapes: B batch, L tokens, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.ops.attention import attend
from millstream.ops.rope import Phases, frame_phases


@dataclass(frozen=True, slots=True)
class Piece:
    """Frames that see the same: where they are in the sequence, and the runs of frames they attend to."""

    frames: slice
    sees: tuple[slice, ...]


class ChunkedSequence:
    """A memory that holds nothing: every layer attends within the sequence it is given."""

    def __init__(
        self, positions: list[int], pieces: list[Piece], grid: tuple[int, int], head_width: int, device: torch.device
    ) -> None:
        self._tokens = grid[0] * grid[1]
        self._pieces = [Piece(self._in_tokens(p.frames), tuple(map(self._in_tokens, p.sees))) for p in pieces]
        self._phases = frame_phases(torch.tensor(positions, device=device), grid, head_width)

    @property
    def phases(self) -> Phases:
        return self._phases

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> None:
        """There is nothing to keep."""

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        return torch.cat(
            [attend(q_BLNH[:, piece.frames], _runs(k_BLNH, piece.sees), _runs(v_BLNH, piece.sees)) for piece in self._pieces],
            dim=1,
        )

    def _in_tokens(self, frames: slice) -> slice:
        return slice(frames.start * self._tokens, frames.stop * self._tokens)


def teacher_forced(chunks: int, frames_per_chunk: int, window: int) -> tuple[list[int], list[Piece]]:
    """Clean frames first, then the same frames noisy: a noisy chunk sees itself and the clean ones before it."""
    f, count = frames_per_chunk, chunks * frames_per_chunk
    pieces = []
    for chunk in range(chunks):
        here = slice(chunk * f, (chunk + 1) * f)
        pieces.append(Piece(here, (slice(max(0, here.stop - window), here.stop),)))
    for chunk in range(chunks):
        before = slice(max(0, (chunk + 1) * f - window), chunk * f)
        here = slice(count + chunk * f, count + (chunk + 1) * f)
        pieces.append(Piece(here, (before, here) if before.stop > before.start else (here,)))
    return [*range(count), *range(count)], pieces


def diffusion_forced(chunks: int, frames_per_chunk: int, window: int) -> tuple[list[int], list[Piece]]:
    """One copy, each chunk at its own noise level: a chunk sees itself and what is before it as noisy as it is."""
    f = frames_per_chunk
    ends = [(chunk + 1) * f for chunk in range(chunks)]
    return list(range(chunks * f)), [Piece(slice(end - f, end), (slice(max(0, end - window), end),)) for end in ends]


def _runs(x_BLNH: Tensor, runs: tuple[slice, ...]) -> Tensor:
    return x_BLNH[:, runs[0]] if len(runs) == 1 else torch.cat([x_BLNH[:, run] for run in runs], dim=1)
