"""Input video of a session: the frames that are left, the encoder's past, how much it moves and so what noise
it gets.

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
from millstream.session.ports import Feed

FAST = 0.2
"""Root-mean-square change between neighbouring frames, of a full range of 1, that counts as the fastest
motion."""
SMOOTHING = 0.8
"""Share of the past in the smoothed motion: a cut in the input settles within about ten chunks."""
LOWEST = 0.05
HIGHEST = 1.0
SMALLER = 4
"""Step between the rows and columns that are looked at."""


class MotionNoise:
    """Amount of noise that a moving input gets: more motion, more noise, smoothed, so that fast scenes are
    redrawn and still ones are kept. Switched off by a gain of 0; a negative gain gives fast scenes less noise
    instead."""

    def __init__(self, gain: float) -> None:
        self.gain = gain
        self._last: NDArray[np.float32] | None = None
        self._motion: float | None = None

    def reset(self) -> None:
        self._last = None
        self._motion = None

    def state(self) -> tuple[NDArray[np.float32] | None, float | None]:
        """The last input frame, small, and the smoothed motion."""
        return self._last, self._motion

    def resume(self, last: NDArray[np.float32] | None, motion: float | None) -> None:
        self._last = last
        self._motion = motion

    def scale(self, frames_THWC: NDArray[np.uint8], base: float) -> float:
        """The noise scale for a chunk of input frames, given the one that was asked for."""
        if self.gain == 0:
            return base
        motion = self._measure(frames_THWC)
        self._motion = motion if self._motion is None else SMOOTHING * self._motion + (1 - SMOOTHING) * motion
        return float(min(HIGHEST, max(LOWEST, base + self.gain * self._motion)))

    def _measure(self, frames_THWC: NDArray[np.uint8]) -> float:
        """0 for a still picture to 1 for the fastest motion."""
        small = frames_THWC[:, ::SMALLER, ::SMALLER].astype(np.float32) / 255.0
        series = small if self._last is None else np.concatenate([self._last[None], small])
        self._last = small[-1]
        if len(series) < 2:
            return 0.0
        change = np.sqrt(np.square(np.diff(series, axis=0)).mean(axis=(1, 2, 3)))
        return float(min(1.0, change.mean() / FAST))


class VideoInput:
    def __init__(self, feed: Feed | None, motion_gain: float) -> None:
        self.feed = feed
        self.encoder: VAEState = ()
        """The encoder's past."""
        self.motion = MotionNoise(motion_gain)
        self.over = False
        """No further frame comes: it ran out, or its session is closed."""

    def forget(self) -> None:
        """Forget the encoder's past: a new epoch starts from nothing; its frames go on."""
        self.encoder = ()
        self.motion.reset()

    def read(self, count: int) -> tuple[NDArray[np.uint8] | None, int]:
        """Take the next chunk's share. Return it and how many pictures of the chunk are real."""
        if self.feed is None:
            return None, count
        taken = self.feed.read(count)
        if taken is None:
            self.over = True
            return None, 0
        return taken

    def encode(
        self, video_THWC: NDArray[np.uint8], vae: VAE, device: torch.device, dtype: torch.dtype
    ) -> Tensor:
        """Its latents [1, F, C, Y, X]."""
        pixels = from_bytes(torch.from_numpy(video_THWC).to(device).permute(0, 3, 1, 2), dtype)
        latents, self.encoder = vae.encode(pixels[None], self.encoder)
        return latents

    def move(self, device: torch.device) -> None:
        self.encoder = tuple(tensor.to(device) for tensor in self.encoder)
