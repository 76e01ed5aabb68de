"""Time that a server has to stop, once asked to: one deadline for all that is waited for then. Knows
not for what."""

from __future__ import annotations

import time
from collections.abc import Callable


class Grace:
    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._ends_at: float | None = None

    def left_s(self) -> float:
        """Return the seconds left; the first call starts the time."""
        now_s = self._clock()
        if self._ends_at is None:
            self._ends_at = now_s + self._seconds
        return max(0.0, self._ends_at - now_s)

    def half_s(self) -> float:
        """Return half the seconds left, for one wait of several: an earlier one cannot use up all."""
        return self.left_s() / 2
