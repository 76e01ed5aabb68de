"""A picture that a stream begins from, or moves towards, as latents.

Shapes: B batch, F latent frames, T pixel frames, H height, W width, C latent channels, Y and X rows and columns.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from millstream.core.conditions import Picture
from millstream.core.config import pixel_frames
from millstream.core.envelope import Envelope
from millstream.models.carry import VAE, VAEState
from millstream.ops.pixels import from_bytes


def encode_picture(
    picture: Picture, envelope: Envelope, vae: VAE, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """[1, F, C, Y, X]: the frames that an epoch begins with, or, for a chunk that moves towards the picture, as
    many as the chunk has."""
    frames_THW3 = _frames(picture)
    begin = envelope.begin_from
    if begin is not None:
        shown = _newest(frames_THW3, pixel_frames(0, begin.frames))
    else:
        shown = _newest(frames_THW3[-1:], pixel_frames(0, 1 + envelope.frames))
    latents = list[Tensor]()
    state: VAEState = ()
    while len(shown):  # no more at a time than a chunk has: memory is counted for that
        count = pixel_frames(len(state), envelope.frames)
        pixels = from_bytes(torch.from_numpy(shown[:count]).to(device).permute(0, 3, 1, 2), dtype)
        encoded, state = vae.encode(pixels[None], state)
        latents.append(encoded)
        shown = shown[count:]
    whole = torch.cat(latents, dim=1)
    return whole if begin is not None else whole[:, 1:]  # an epoch's first latent frame is unlike later ones


def _frames(picture: Picture) -> np.ndarray:
    shape = (picture.num_frames, picture.height, picture.width, 3)
    return np.frombuffer(picture.pixels(), np.uint8).reshape(shape)


def _newest(frames_THW3: np.ndarray, count: int) -> np.ndarray:
    """So many of the newest frames; a picture stands still."""
    missing = max(0, count - len(frames_THW3))
    return np.concatenate([np.repeat(frames_THW3[:1], missing, axis=0), frames_THW3[-count:]])
