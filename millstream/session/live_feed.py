"""Input frames as they come, from a camera or a socket. Knows no codecs; the newest frames win.

Bounded: when a chunk is late and `CAPACITY` frames wait, the oldest is dropped, so that what a person does in front of the
camera shows soon. One thread pushes, another takes.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from millstream.session.feed import Frames

CAPACITY = 48


class LiveFeed:
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
        """No more will come; what waits is still taken."""
        with self._lock:
            self._over = True

    def can_give(self, count: int) -> bool:
        """Whether `take` would not have to wait: enough frames, or the end."""
        with self._lock:
            return self._over or len(self._frames) >= count

    def take(self, count: int) -> tuple[Frames, int] | None:
        """[count, H, W, 3] and how many of them are real, the last one repeated at the end; None after it."""
        assert count > 0, f"a chunk takes 1 frame or more, got {count}"
        with self._lock:
            taken = [self._frames.popleft() for _ in range(min(count, len(self._frames)))]
        if not taken:
            return None
        real = len(taken)
        taken.extend(taken[-1:] * (count - real))
        return np.stack(taken), real
