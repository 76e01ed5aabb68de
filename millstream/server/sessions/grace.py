"""The time that a server has to stop, once it is told to: one deadline for all that is waited for then. Knows not for what."""

from __future__ import annotations

import time
from collections.abc import Callable


class Grace:
    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._ends_at: float | None = None

    def left_s(self) -> float:
        """Who asks first begins it."""
        now_s = self._clock()
        if self._ends_at is None:
            self._ends_at = now_s + self._seconds
        return max(0.0, self._ends_at - now_s)

    def half_s(self) -> float:
        """For one wait of several: nobody's comes to nothing because one before it used up everything."""
        return self.left_s() / 2
