"""How long a thread has been at work, without what it waited for a device.

By the wall, and by the thread's own clock: that one stands while other threads run in its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class HostTime(NamedTuple):
    """A moment, or what lies between two."""

    wall_s: float = 0.0
    thread_s: float = 0.0

    def since(self, earlier: HostTime) -> HostTime:
        return HostTime(self.wall_s - earlier.wall_s, self.thread_s - earlier.thread_s)


class HostClock:
    def __init__(self) -> None:
        self._waited = HostTime()

    def now(self) -> HostTime:
        """Counted from some moment; for the thread that asks."""
        return HostTime(time.monotonic(), time.thread_time()).since(self._waited)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """For as long as the block lasts: the device is waited for."""
        begun = self.now()
        try:
            yield
        finally:
            now = self.now().since(begun)
            self._waited = HostTime(self._waited.wall_s + now.wall_s, self._waited.thread_s + now.thread_s)
