"""Input frames for video to video, taken as many at a time as a chunk needs. Knows no files and no codecs.

A live feed is bounded: when a chunk is late and `CAPACITY` frames wait, the oldest is dropped, so that what a
person does in front of the camera shows soon. One thread pushes, another takes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
CAPACITY = 48


class FrameFeed:
    """Frames [H, W, 3] from any iterable, live or not."""

    def __init__(self, frames: Iterable[Frames]) -> None:
        self._frames = iter(frames)

    def read(self, count: int) -> tuple[Frames, int] | None:
        """[count, H, W, 3] and how many of them are real, or None at the end."""
        return _filled(list(islice(self._frames, count)), count)


class LiveFeed:
    """Frames as they come, from a camera or a socket; the newest win."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self.dropped = 0
        self._frames: deque[Frames] = deque(maxlen=CAPACITY)
        self._over = False
        self._lock = threading.Lock()

    def push(self, frame_HW3: Frames) -> None:
        assert frame_HW3.shape == (*self.size, 3), f"frames must be {self.size}, got {frame_HW3.shape}"
        with self._lock:
            self.dropped += len(self._frames) == CAPACITY
            self._frames.append(frame_HW3)

    def finish(self) -> None:
        """End the feed: no more frames will come; those that wait are still taken."""
        with self._lock:
            self._over = True

    def can_give(self, count: int) -> bool:
        """Return whether `read` would not have to wait: enough frames are there, or the end."""
        with self._lock:
            return self._over or len(self._frames) >= count

    def read(self, count: int) -> tuple[Frames, int] | None:
        """[count, H, W, 3] and how many of them are real; None after the last."""
        with self._lock:
            taken = [self._frames.popleft() for _ in range(min(count, len(self._frames)))]
        return _filled(taken, count)


def _filled(taken: list[Frames], count: int) -> tuple[Frames, int] | None:
    """An incomplete chunk is filled by repeating its last frame."""
    assert count > 0, f"a chunk takes 1 frame or more, got {count}"
    if not taken:
        return None
    real = len(taken)
    return np.stack([*taken, *taken[-1:] * (count - real)]), real
