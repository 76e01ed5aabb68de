"""The session table under its lock, and what the engine's thread is to do for others between turns.

Everything that several threads touch is here, and `with shared:` holds the lock: never while the model works.
A session that fails in `ending_alone` ends, and no other. One that comes from a file, as saved ones do, is
read on a thread of its own once it has its place, since disks are slow, and made on the engine's thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from millstream.core.config import StreamConfig
from millstream.core.errors import ChunkCut, MillstreamError, Overloaded
from millstream.core.undo import undone_by
from millstream.engine.engine import Engine
from millstream.serving.admission import Admission
from millstream.serving.notices import Ended
from millstream.serving.scheduler import Scheduler
from millstream.serving.session_entry import SessionEntry
from millstream.serving.session_table import SessionTable
from millstream.serving.turns import Halt
from millstream.session.session import Session

log = logging.getLogger(__name__)


class SharedTable:
    def __init__(
        self,
        engine: Engine,
        *,
        admission: Admission,
        scheduler: Scheduler,
        session_bytes: Callable[[StreamConfig], int],
    ) -> None:
        self.table = SessionTable(
            engine,
            admission=admission,
            scheduler=scheduler,
            session_bytes=session_bytes,
            revive=self.begin_saved,
        )
        self.jobs: deque[Callable[[], None]] = deque()
        """Jobs for the engine's thread, between turns."""
        self.is_over = False
        """True once everything is to end."""
        self._engine = engine
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        self._changed.acquire()

    def __exit__(self, *failure: object) -> None:
        self._changed.release()

    def notify(self) -> None:
        """Have the engine's thread look again. Under the lock."""
        self._changed.notify_all()

    def wait(self, timeout_s: float | None) -> None:
        """Wait for a change. Under the lock, on the engine's thread."""
        self._changed.wait(timeout_s)

    def refuse_when_over(self) -> None:
        if self.is_over:
            raise Overloaded("the server is shutting down; try another one")

    def add_job(self, job: Callable[[], None]) -> None:
        """Have the engine's thread run a job between turns; also when all is over, so that its caller is
        answered."""
        with self:
            self.jobs.append(job)
            self.notify()

    def soon(self, job: Callable[[], None]) -> None:
        """Add a job as `add_job` does, but do not run it once all is over."""
        self.add_job(lambda: None if self.is_over else job())

    def lift(self, entry: SessionEntry, *whys: Halt) -> None:
        """Let a session go on that stood still for these reasons. Under the lock."""
        self.table.lift(entry, *whys)
        self.notify()

    # Sessions that fail

    @contextmanager
    def ending_alone(self, entry: SessionEntry, **about: object) -> Iterator[None]:
        """End this session and no other for what goes wrong in the block."""
        try:
            yield
        except Exception as error:
            self.fail(entry, error, **about)

    def fail(self, entry: SessionEntry, error: Exception, **about: object) -> None:
        if self.is_over and isinstance(error, ChunkCut):
            return  # ends with all others
        if entry.session is None and isinstance(
            error, MillstreamError
        ):  # it never began: its file is gone, or its parent
            log.info("the session could not begin: %s", error, extra={"session": entry.label, **about})
        else:
            log.error("the session has failed", exc_info=error, extra={"session": entry.label, **about})
        reason = (
            str(error)
            if isinstance(error, MillstreamError)
            else f"it failed ({type(error).__name__}); the log has more"
        )
        if isinstance(error, torch.OutOfMemoryError):
            reason = "the device ran out of memory; choose a smaller size or window"
        with self:
            if self.table.holds(entry):  # it may have been given up while it was revived
                self.table.finish(entry, Ended(cause="failed", reason=reason))
        if self._engine.device.type == "cuda":
            torch.cuda.empty_cache()

    # Sessions that come from a file

    def begin_saved(self, entry: SessionEntry, note: str) -> None:
        threading.Thread(
            target=self.read_saved, args=(entry, note), name="millstream-read", daemon=True
        ).start()

    def read_saved(self, entry: SessionEntry, note: str) -> None:
        """Read a saved session only now, when it has its place: while in line it is only a file."""
        assert entry.request.start is not None, f"{entry.label} was not saved"
        with self.ending_alone(entry):
            self.soon(partial(self._make_saved, entry, entry.request.start(), note))

    def _make_saved(self, entry: SessionEntry, make: Callable[[Engine], Session], note: str) -> None:
        """Make it on the engine's thread, without the lock: all that it holds is copied."""
        if not self.table.holds(entry):
            return  # it was given up while it waited for this
        with self.ending_alone(entry):
            session = make(self._engine)
            with undone_by(session.close), self:
                if self.table.holds(entry):
                    self.table.schedule(entry, session, note)
                else:
                    session.close()
