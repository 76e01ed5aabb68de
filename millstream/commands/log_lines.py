"""Progress of a run, for logs: a bar shows in a file only when it is done, so there a line says it now and
then.

On a terminal this says nothing; the bar does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

EVERY_S = 30.0


class LogLines:
    def __init__(
        self,
        console: Console,
        *,
        counted: str = "step",
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.has_bar = console.is_interactive
        self._console = console
        self._counted = counted
        self._every_s = every_s
        self._clock = clock
        self._last_s: float | None = None

    def add(self, done: int, total: int | None, said: str = "") -> None:
        """The first, the last, and what comes when the last line is old. Without a total none knows which
        is the last."""
        now_s = self._clock()
        is_due = self._last_s is None or now_s - self._last_s >= self._every_s or done == total
        if self.has_bar or not is_due:
            return
        self._last_s = now_s
        line = f"{self._counted} {done}" + (f" of {total}" if total else "") + (f": {said}" if said else "")
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)
