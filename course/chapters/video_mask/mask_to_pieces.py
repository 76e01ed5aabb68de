"""The mask of a stream, drawn; and the same attention without a mask, piece by piece, with less work."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from course.brook import CPU
from course.chapters.video_mask.small_dit import COLUMNS, CONFIG, ROWS, TOKENS
from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.train.sequence import ChunkedSequence, diffusion_forced


def run(reader: Reader, chunks: int = 3, frames: int = 2, window: int = 4) -> None:
    """`frames` a chunk; `window` frames are seen, one's own chunk included."""
    if min(chunks, frames) < 1 or window < frames:
        raise CourseError(f"--window must hold a chunk of --frames, got {window} and {frames}")
    count = chunks * frames
    mask = block_causal(chunks, frames, window)
    for frame in range(count):
        reader.say(
            f"frame {frame} sees {' '.join('x' if mask[frame, other] else '.' for other in range(count))}"
        )
    guess = reader.predict(f"of {count} x {count} pairs of frames, how many are computed?")
    sequence = ChunkedSequence(diffusion_forced(chunks, frames, window), CONFIG, (ROWS, COLUMNS), CPU)
    pairs = round(sequence.keys_per_query * count / TOKENS)
    reader.reveal(guess, pairs, by="train.sequence, and the crosses above")
    assert pairs == int(mask.sum()), f"{pairs} pairs, {int(mask.sum())} crosses"
    q, k, v = (
        torch.randn(1, count * TOKENS, CONFIG.heads, CONFIG.head_width, generator=_seeded(n))
        for n in range(3)
    )
    masked = _masked(q, k, v, mask.repeat_interleave(TOKENS, 0).repeat_interleave(TOKENS, 1))
    error = float((sequence.attend(0, q, k, v) - masked).abs().max())
    assert error < 1e-5, f"pieces and mask differ by {error}"
    reader.say(
        "attention piece by piece is attention under the mask, within 1e-5; what a mask hides is never "
        "computed"
    )


def block_causal(chunks: int, frames: int, window: int) -> Tensor:
    """[frames, frames]: who sees whom. A chunk sees itself whole, and `window` frames up to its own end."""
    frame = torch.arange(chunks * frames)
    end = (frame // frames + 1) * frames
    return (frame[None] < end[:, None]) & (frame[None] >= end[:, None] - window)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
