"""How much noise a moving input gets: more motion, more noise, smoothed, so that fast scenes are redrawn
and still ones are kept. Switched off by a gain of 0; a negative gain gives fast scenes less noise instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FAST = 0.2
"""Root-mean-square change between neighbouring frames, of a full range of 1, that counts as the fastest motion."""
SMOOTHING = 0.8
"""Share of the past in the smoothed motion: a cut in the input settles within about ten chunks."""
LOWEST, HIGHEST = 0.05, 1.0
SMALLER = 4
"""Of every so many rows and columns one is looked at."""


class MotionNoise:
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
        self._last, self._motion = last, motion

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
