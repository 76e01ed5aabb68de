"""Input frames for video to video, taken as many at a time as a chunk needs. Knows no files and no codecs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]


class FrameFeed:
    """Frames [H, W, 3] from any iterable, live or not. The last, incomplete chunk is filled by repeating its last frame."""

    def __init__(self, frames: Iterable[Frames]) -> None:
        self._frames = iter(frames)

    def take(self, count: int) -> tuple[Frames, int] | None:
        """[count, H, W, 3] and how many of them are real, or None at the end."""
        assert count > 0, f"a chunk takes 1 frame or more, got {count}"
        taken = list(islice(self._frames, count))
        if not taken:
            return None
        real = len(taken)
        taken.extend(taken[-1:] * (count - real))
        return np.stack(taken), real
