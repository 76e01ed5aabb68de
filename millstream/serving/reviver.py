"""Sessions that come from a file, as saved ones do, once they have their place: read on a thread of their own, since disks are
slow, and made on the engine's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from millstream.core.undo import undone_by
from millstream.engine.engine import Engine
from millstream.serving.session_entry import SessionEntry
from millstream.serving.session_table import SessionTable
from millstream.session.session import Session


class Reviver:
    def __init__(
        self,
        engine: Engine,
        table: SessionTable,
        lock: threading.Condition,
        ending_alone: Callable[[SessionEntry], AbstractContextManager[None]],
        *,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """What goes wrong within `ending_alone` ends one session; `soon` has a job done on the engine's thread."""
        self._engine, self._table, self._lock = engine, table, lock
        self._ending_alone, self._soon = ending_alone, soon

    def begin(self, entry: SessionEntry, note: str) -> None:
        threading.Thread(target=self.read, args=(entry, note), name="millstream-read", daemon=True).start()

    def read(self, entry: SessionEntry, note: str) -> None:
        """Only now, when it has its place: what waits in line is a file."""
        assert entry.request.start is not None, f"{entry.label} was not saved"
        with self._ending_alone(entry):
            self._soon(partial(self._revive, entry, entry.request.start(), note))

    def _revive(self, entry: SessionEntry, make: Callable[[Engine], Session], note: str) -> None:
        """Without the lock: all that it holds is copied."""
        if not self._table.holds(entry):
            return  # it was given up while it waited for this
        with self._ending_alone(entry):
            session = make(self._engine)
            with undone_by(session.close), self._lock:
                if self._table.holds(entry):
                    self._table.schedule(entry, session, note)
                else:
                    session.close()
