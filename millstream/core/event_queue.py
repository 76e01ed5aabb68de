"""Events of a simulation in the order of their time; events of one time in the order they were added. Knows
no wall clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class EventQueue:
    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._added = 0

    def at(self, when: float, handle: Callable[..., None], *subject: object) -> None:
        """Have `handle(when, *subject)` called at that time."""
        self._added += 1
        heapq.heappush(self._events, (when, self._added, handle, subject))

    def run(self, until: float, going: Callable[[], bool] = lambda: True) -> None:
        """Handle what happens up to then, for as long as `going`."""
        while self._events and self._events[0][0] <= until and going():
            now, _, handle, subject = heapq.heappop(self._events)
            handle(now, *subject)
