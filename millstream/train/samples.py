"""Sheets of what a run has learnt so far: one row a scene, moments to the right, always the same scenes and
noise.

Shapes: R rows, M moments, T pixel frames, C channels, Y and X rows and columns, S text tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from millstream.core.config import pixel_frames
from millstream.core.schedule import FULL, noise_levels
from millstream.models import sampler
from millstream.models.brook.text import PAD
from millstream.models.brook.vae import BrookVAE
from millstream.ops.precision import mixed_precision
from millstream.train.data.preview import as_bytes, tile
from millstream.train.methods.flow import TextAndDiT
from millstream.train.rollout import Guided, drawn_from, ring_for, solve, stream_batch

CHUNKS = 4
MOMENTS = 6


@torch.no_grad()
def reconstructions(vae: BrookVAE, pixels_RTCYX: Tensor) -> np.ndarray:
    """A picture of each clip and the same through the VAE."""
    found = vae.decode(vae.encode(pixels_RTCYX)[0])[0]
    return _sheet(torch.stack([pixels_RTCYX[:, -1], found[:, -1].to(pixels_RTCYX.dtype)], dim=1))


@torch.no_grad()
def taught_streams(
    pair: TextAndDiT,
    vae: BrookVAE,
    ids_RS: Tensor,
    size: tuple[int, int],
    *,
    window: int,
    guidance: float = 2.5,
    steps: int = 12,
) -> np.ndarray:
    """Streams of a many-step model, with guidance."""
    device = ids_RS.device
    shape = (len(ids_RS), 3, vae.config.channels, *size)
    path = noise_levels(tuple(FULL * (1 - i / steps) for i in range(steps)), shift=3.0, warp=True)
    generator = torch.Generator(device).manual_seed(0)
    with mixed_precision(device):
        both = pair.text(torch.cat([ids_RS, torch.full_like(ids_RS, PAD)]))
        guided = Guided(pair.dit, guidance)
        cross = pair.dit.read_prompt(both)
        parts = []
        ring = ring_for(pair.dit, (2 * shape[0], *shape[1:]), window=window, device=device)
        for chunk in range(CHUNKS):
            ring.place(list(range(3 * chunk, 3 * chunk + 3)))
            clean = solve(guided, torch.randn(shape, generator=generator, device=device), path, ring, cross)
            sampler.commit(guided, clean, 0.0, ring, cross)
            parts.append(clean)
        return _moments(vae.decode(torch.cat(parts, dim=1))[0])


@torch.no_grad()
def student_streams(
    pair: TextAndDiT,
    vae: BrookVAE,
    ids_RS: Tensor,
    size: tuple[int, int],
    *,
    window: int,
    levels: tuple[float, ...],
) -> np.ndarray:
    """Streams as a session would make them."""
    device = ids_RS.device
    shape = (len(ids_RS), 3, vae.config.channels, *size)
    generator = torch.Generator(device).manual_seed(0)
    with mixed_precision(device):
        cross = pair.dit.read_prompt(pair.text(ids_RS))
        ring = ring_for(pair.dit, shape, window=window, device=device)
        latents = stream_batch(
            pair.dit, ring, cross, shape, chunks=CHUNKS, levels=levels, noise=drawn_from(generator, shape)
        )
        return _moments(vae.decode(latents)[0])


def _moments(pixels_RTCYX: Tensor) -> np.ndarray:
    last = pixel_frames(0, 3 * CHUNKS) - 1
    return _sheet(pixels_RTCYX[:, [round(last * moment / (MOMENTS - 1)) for moment in range(MOMENTS)]])


def _sheet(pictures_RMCYX: Tensor) -> np.ndarray:
    return tile(as_bytes(pictures_RMCYX.float())).numpy()
