"""What of a session comes from its input video: the frames that are left, the encoder's past, how much it moves.

A session without one has this too; then nothing is taken and it never runs out.
Shapes: B batch, F latent frames, T pixel frames, C latent channels, Y and X rows and columns.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream.models.carry import VAE, VAEState
from millstream.ops.pixels import from_bytes
from millstream.session.motion import MotionNoise
from millstream.session.ports import Feed


class VideoInput:
    def __init__(self, feed: Feed | None, motion_gain: float) -> None:
        self.feed = feed
        self.encoder: VAEState = ()
        """The encoder's past."""
        self.motion = MotionNoise(motion_gain)
        self.over = False
        """No further frame comes: it ran out, or its session is closed."""

    def forget(self) -> None:
        """A new epoch starts from nothing; its frames go on."""
        self.encoder = ()
        self.motion.reset()

    def take(self, count: int) -> tuple[NDArray[np.uint8] | None, int]:
        """The next chunk's share, and how many pictures of the chunk are real."""
        if self.feed is None:
            return None, count
        taken = self.feed.take(count)
        if taken is None:
            self.over = True
            return None, 0
        return taken

    def encode(self, video_THWC: NDArray[np.uint8], vae: VAE, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Its latents [1, F, C, Y, X]."""
        pixels = from_bytes(torch.from_numpy(video_THWC).to(device).permute(0, 3, 1, 2), dtype)
        latents, self.encoder = vae.encode(pixels[None], self.encoder)
        return latents

    def move(self, device: torch.device) -> None:
        self.encoder = tuple(tensor.to(device) for tensor in self.encoder)
