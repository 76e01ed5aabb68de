"""Whole sequences under a block-causal mask, for training: the same rules a ring keeps while streaming.

No mask is ever built. The sequence is cut where the mask would change, and each piece attends to the runs of
frames it may see, at full speed and without work on what it may not.
Shapes: B batch, L tokens, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT, CrossKV
from millstream.ops.attention import attend
from millstream.ops.rope import Phases, frame_phases


@dataclass(frozen=True, slots=True)
class Piece:
    """Frames that see the same: where they are in the sequence, and the runs of frames they attend to."""

    frames: slice
    sees: tuple[slice, ...]


Layout = tuple[list[int], list[Piece]]
"""The number of each frame in the sequence, and the pieces it is cut into."""


class ChunkedSequence:
    """A memory that holds nothing: every layer attends within the sequence it is given."""

    def __init__(self, layout: Layout, config: DiTConfig, latent_size: tuple[int, int], device: torch.device) -> None:
        positions, pieces = layout
        grid = latent_size[0] // config.patch, latent_size[1] // config.patch
        self._tokens = grid[0] * grid[1]
        self._pieces = [Piece(self._in_tokens(p.frames), tuple(map(self._in_tokens, p.sees))) for p in pieces]
        self._phases = frame_phases(torch.tensor(positions, device=device), grid, config.head_width)

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


def teacher_forced(chunks: int, frames_per_chunk: int, window: int) -> Layout:
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


def diffusion_forced(chunks: int, frames_per_chunk: int, window: int) -> Layout:
    """One copy, each chunk at its own noise level: a chunk sees itself and what is before it as noisy as it is."""
    f = frames_per_chunk
    ends = [(chunk + 1) * f for chunk in range(chunks)]
    return list(range(chunks * f)), [Piece(slice(end - f, end), (slice(max(0, end - window), end),)) for end in ends]


def forced_flow(
    dit: CausalDiT, clean_BFCYX: Tensor, noisy_BFCYX: Tensor, level_BF: Tensor, sequence: ChunkedSequence, cross: CrossKV
) -> Tensor:
    """Flows of noisy chunks that see clean ones before them, in float32. `sequence` is laid out by `teacher_forced`."""
    levels = torch.cat([torch.zeros_like(level_BF), level_BF], dim=1)
    both = torch.cat([clean_BFCYX, noisy_BFCYX], dim=1)
    return dit(both, levels, sequence, cross)[:, clean_BFCYX.shape[1] :].float()


def _runs(x_BLNH: Tensor, runs: tuple[slice, ...]) -> Tensor:
    return x_BLNH[:, runs[0]] if len(runs) == 1 else torch.cat([x_BLNH[:, run] for run in runs], dim=1)
