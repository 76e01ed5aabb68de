"""Handling of Ctrl-C and SIGTERM between steps: the first signal lets the current step finish and be saved,
the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Stopped(KeyboardInterrupt):
    """Raised when a run has stopped on request, with all that was learnt saved."""


class Interrupt:
    """Context that remembers whether a signal asked to stop."""

    def __init__(self, on_asked: Callable[[], None] = lambda: None) -> None:
        """`on_asked` runs in the signal's handler: it may interrupt anything."""
        self.asked = False
        self._on_asked = on_asked

    def __enter__(self) -> Interrupt:
        self._ours = threading.current_thread() is threading.main_thread()  # only there may handlers be set
        if self._ours:
            self._before = {
                number: signal.signal(number, self._remember) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ours:
            for number, before in self._before.items():
                signal.signal(number, before)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._on_asked()
