"""Whole sequences under a block-causal mask, for training: the same rules a ring keeps while streaming.

No mask is ever built. The sequence is cut where the mask would change, and each piece attends to the runs of
frames it may see, at full speed and without work on what it may not (`ops/piecewise.py`).
Shapes: B batch, L tokens, N heads, H head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.core.config import DiTConfig
from millstream.models.dit import CrossKV
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import WholeSequence
from millstream.ops.attention import HALF, chosen_backend
from millstream.ops.piecewise import PiecesBeside, TokenPiece, attend_beside, attend_pieces
from millstream.ops.rope import Phases, frame_phases


@dataclass(frozen=True, slots=True)
class Piece:
    """Frames that see the same: where they are in the sequence, and the runs of frames they attend to."""

    frames: slice
    sees: tuple[slice, ...]


Layout = tuple[list[int], list[Piece]]
"""The number of each frame in the sequence, and the pieces it is cut into."""


class ChunkedSequence(WholeSequence):
    """Frames in their layout."""

    def __init__(
        self, layout: Layout, config: DiTConfig, latent_size: tuple[int, int], device: torch.device
    ) -> None:
        positions, pieces = layout
        covered = sum(piece.frames.stop - piece.frames.start for piece in pieces)
        assert covered == len(positions), f"pieces of {covered} frames for a sequence of {len(positions)}"
        grid = latent_size[0] // config.patch, latent_size[1] // config.patch
        self.num_frames = len(positions)
        self._numbers = torch.tensor(positions, device=device)
        self._tokens = grid[0] * grid[1]
        self._pieces = [
            TokenPiece(self._in_tokens(p.frames), tuple(map(self._in_tokens, p.sees))) for p in pieces
        ]
        self._beside = (
            PiecesBeside.of(self._pieces, common_unit(pieces) * self._tokens)
            if _has_cudnn(config, device)
            else None
        )
        self._phases = frame_phases(torch.tensor(positions, device=device), grid, config.head_width)
        self._frames_seen = frames_seen(layout)

    def entered(self, entries: Entries) -> Entries:
        """Return the entries of its frames, from those of the frames of a clip or a stream whose end it
        lays out."""
        if entries.is_empty:
            return entries
        before = entries.num_frames - 1 - int(self._numbers.max())
        assert before >= 0, (
            f"entries of {entries.num_frames} frames for a sequence up to {self._numbers.max()}"
        )
        return entries.frames(self._numbers + before)

    @property
    def num_tokens(self) -> int:
        return self.num_frames * self._tokens

    @property
    def keys_per_query(self) -> float:
        return self._frames_seen * self._tokens

    @property
    def phases(self) -> Phases:
        return self._phases

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> None:
        """There is nothing to keep."""

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        if self._beside and q_BLNH.dtype in HALF and torch.is_grad_enabled():
            return attend_beside(q_BLNH, k_BLNH, v_BLNH, self._beside)
        # forward-mode derivatives, without gradients, see through it
        return attend_pieces(q_BLNH, k_BLNH, v_BLNH, self._pieces)

    def _in_tokens(self, frames: slice) -> slice:
        return slice(frames.start * self._tokens, frames.stop * self._tokens)


def frames_seen(layout: Layout) -> float:
    """By a frame, on average: pieces see more or less."""
    positions, pieces = layout
    return sum(_length(piece.frames) * sum(map(_length, piece.sees)) for piece in pieces) / len(positions)


def common_unit(pieces: Sequence[Piece]) -> int:
    """Frames, in multiples of which all pieces and what they see begin and end."""
    return math.gcd(
        *(bound for piece in pieces for run in (piece.frames, *piece.sees) for bound in (run.start, run.stop))
    )


def teacher_forced(noisy: Sequence[int], frames_per_chunk: int, window: int, given: int = 0) -> Layout:
    """Clean chunks 0, 1, 2 ... first, as far as they are needed, then noisy ones by number, each as often as
    it is named. A noisy chunk sees itself and the clean ones before it. Chunk 0 comes after `given` clean
    frames, as those of a picture that a stream begins from; they see each other."""
    f = frames_per_chunk
    clean = max(noisy)
    pieces = _given_piece(given)
    for chunk in range(clean):
        here = slice(given + chunk * f, given + (chunk + 1) * f)
        pieces.append(Piece(here, (slice(max(0, here.stop - window), here.stop),)))
    for place, chunk in enumerate(noisy, start=clean):
        before = slice(max(0, given + (chunk + 1) * f - window), given + chunk * f)
        here = slice(given + place * f, given + (place + 1) * f)
        pieces.append(Piece(here, (before, here) if before.stop > before.start else (here,)))
    return [*range(given + clean * f), *frames_of(noisy, f, given)], pieces


def frames_of(chunks: Sequence[int], frames_per_chunk: int, given: int = 0) -> list[int]:
    return [given + chunk * frames_per_chunk + frame for chunk in chunks for frame in range(frames_per_chunk)]


def diffusion_forced(chunks: int, frames_per_chunk: int, window: int, given: int = 0) -> Layout:
    """One copy, each chunk at its own noise level: a chunk sees itself and what is before it as noisy as it
    is. `given` as in `teacher_forced`."""
    f = frames_per_chunk
    ends = [given + (chunk + 1) * f for chunk in range(chunks)]
    return list(range(given + chunks * f)), _given_piece(given) + [
        Piece(slice(end - f, end), (slice(max(0, end - window), end),)) for end in ends
    ]


def _given_piece(given: int) -> list[Piece]:
    return [Piece(slice(0, given), (slice(0, given),))] if given else []


def together(frames: int) -> Layout:
    """Frames that all see each other, with nothing before them."""
    return list(range(frames)), [Piece(slice(0, frames), (slice(0, frames),))]


def beside(one: Layout, other: Layout) -> Layout:
    """Two layouts in one sequence, neither of which sees the other."""
    by = len(one[0])

    def moved(run: slice) -> slice:
        return slice(run.start + by, run.stop + by)

    return one[0] + other[0], one[1] + [
        Piece(moved(piece.frames), tuple(map(moved, piece.sees))) for piece in other[1]
    ]


def forced_flow(
    dit: Callable[..., Tensor],
    clean_BFCYX: Tensor,
    noisy_BFCYX: Tensor,
    level_BF: Tensor,
    sequence: ChunkedSequence,
    cross: CrossKV,
    context_BF: Tensor | None = None,
    entries: Entries = NO_ENTRIES,
) -> Tensor:
    """Flows of the noisy frames at the end of a sequence, in float32. `entries` are those of all its
    frames."""
    both, levels = forced_input(clean_BFCYX, noisy_BFCYX, level_BF, sequence, context_BF)
    return dit(both, levels, sequence, cross, entries)[:, -noisy_BFCYX.shape[1] :].float()


def forced_input(
    clean_BFCYX: Tensor,
    noisy_BFCYX: Tensor,
    level_BF: Tensor,
    sequence: ChunkedSequence,
    context_BF: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The frames of a sequence that is laid out by `teacher_forced`, `together` or both, and their levels. Of
    the clean frames, which are at the levels `context_BF` if these are given, those it has no place for are
    left out."""
    context_BFCYX = clean_BFCYX[:, : sequence.num_frames - noisy_BFCYX.shape[1]]
    clean_BF = (
        level_BF.new_zeros(context_BFCYX.shape[:2])
        if context_BF is None
        else context_BF[:, : context_BFCYX.shape[1]]
    )
    both = torch.cat([context_BFCYX, noisy_BFCYX], dim=1)
    assert both.shape[1] == sequence.num_frames, (
        f"{both.shape[1]} frames for a sequence of {sequence.num_frames}"
    )
    return both, torch.cat([clean_BF, level_BF], dim=1)


def _length(run: slice) -> int:
    length: int = run.stop - run.start
    return length


def _has_cudnn(config: DiTConfig, device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and chosen_backend(config.heads, config.head_width, device=device, dtype=torch.bfloat16) == "cudnn"
    )
