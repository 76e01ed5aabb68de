"""Noise levels for training: one a chunk, at random, moved towards noise as the sampling schedule is.

Shapes: B batch, F frames, K chunks, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from millstream.core.schedule import FULL
from millstream.models import sampler
from millstream.train.share import ALONE, BatchShare


def chunk_levels(
    clean_BFCYX: Tensor,
    frames_per_chunk: int,
    shift: float,
    generator: torch.Generator,
    *,
    margin: float = 0.0,
    share: BatchShare = ALONE,
) -> Tensor:
    """Draw noise levels [B, F], one a chunk. `margin` is the share of the range that they keep from both
    ends."""
    frames = clean_BFCYX.shape[1]
    assert frames % frames_per_chunk == 0, f"{frames} frames are not whole chunks of {frames_per_chunk}"
    chunks = clean_BFCYX.shape[1] // frames_per_chunk
    uniform_BK = share.uniform((clean_BFCYX.shape[0], chunks), generator)
    return spread_levels(uniform_BK, frames_per_chunk, shift, margin=margin)


def spread_levels(uniform_BK: Tensor, frames_per_chunk: int, shift: float, *, margin: float = 0.0) -> Tensor:
    """Return noise levels [B, F] from numbers that were drawn evenly from 0 to 1."""
    uniform_BK = margin + (1.0 - 2.0 * margin) * uniform_BK
    level_BK = FULL * shift * uniform_BK / (1 + (shift - 1) * uniform_BK)
    return level_BK.repeat_interleave(frames_per_chunk, dim=1)


class Noised(NamedTuple):
    """Noised frames, the noise in them, and the level of each [B, F]."""

    noisy: Tensor
    noise: Tensor
    level_BF: Tensor


def noised(
    clean_BFCYX: Tensor,
    frames_per_chunk: int,
    shift: float,
    generator: torch.Generator,
    *,
    margin: float = 0.0,
) -> Noised:
    """Add noise to each chunk at a random level of its own."""
    level_BF = chunk_levels(clean_BFCYX, frames_per_chunk, shift, generator, margin=margin)
    noise = ALONE.normal(clean_BFCYX.shape, generator)
    return Noised(at_levels(clean_BFCYX, noise, level_BF), noise, level_BF)


def at_levels(clean_BFCYX: Tensor, noise_BFCYX: Tensor, level_BF: Tensor) -> Tensor:
    """Mix each frame with noise at its own level."""
    assert level_BF.shape == clean_BFCYX.shape[:2], (
        f"levels {tuple(level_BF.shape)} for {tuple(clean_BFCYX.shape)}"
    )
    return sampler.mix(clean_BFCYX, noise_BFCYX, per_pixel(level_BF))


def clean_estimate(noisy_BFCYX: Tensor, level_BF: Tensor, flow_BFCYX: Tensor) -> Tensor:
    """Return the clean frames that a flow leads to in one step."""
    return noisy_BFCYX - per_pixel(level_BF) / FULL * flow_BFCYX


def per_pixel(level_BF: Tensor) -> Tensor:
    """Reshape levels to broadcast over [B, F, C, Y, X]."""
    return level_BF[..., None, None, None]
