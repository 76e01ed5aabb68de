"""Record of the threads of this process that wait for a GPU, and how: explicitly, or hidden in a copy or in
reading a number.

torch's own watch for hidden waits (`set_sync_debug_mode`) is one for the whole process, but it warns on the
thread that waits: the warnings are taken here and counted by thread. Waiting for an event, a stream or the
device is not among them and is noted by wrappers.
"""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

HIDDEN = "hidden"
EXPLICIT: tuple[tuple[Any, str], ...] = (
    (torch.cuda.Event, "synchronize"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda, "synchronize"),
)


class SyncGuard:
    """While it is entered, by thread name: what that thread waited by."""

    def __init__(self) -> None:
        self.waits: defaultdict[str, list[str]] = defaultdict(list)

    def __enter__(self) -> SyncGuard:
        self._catching = warnings.catch_warnings()
        self._catching.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._warned
        self._before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        self._own = [(owner, name, getattr(owner, name)) for owner, name in EXPLICIT]
        for owner, name, function in self._own:
            setattr(owner, name, self._noting(f"{owner.__name__}.{name}", function))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, function in self._own:
            setattr(owner, name, function)
        torch.cuda.set_sync_debug_mode(self._before)
        self._catching.__exit__(kind, error, trace)

    def _noting(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._note(what)
            return function(*args, **kwargs)

        return noted

    def _warned(
        self, message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any
    ) -> None:
        if "called a synchronizing" in str(message):  # another warning, once, says that this watch is new
            self._note(f"{HIDDEN} at {filename}:{lineno}")

    def _note(self, what: str) -> None:
        self.waits[threading.current_thread().name].append(what)
