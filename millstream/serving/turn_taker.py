"""What the engine's thread does with a turn: chunks are planned, made and shown, sessions moved and ended.

A session that fails ends alone and gives back what it held. Knows neither who opens sessions nor when the thread ends: that is
`serving/service.py`, whose lock guards the table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from millstream.core.errors import ChunkCut, MillstreamError
from millstream.engine.engine import Engine
from millstream.engine.flights import NOTHING_SETTLED, Landing, Planned, Settled, Streaming
from millstream.engine.pipeline import ChunkPipeline
from millstream.serving.alike import Alike
from millstream.serving.look_ahead import LookAhead
from millstream.serving.notices import Ended
from millstream.serving.session_entry import SessionEntry, of_one_kind
from millstream.serving.session_table import SessionTable
from millstream.serving.turns import EndTurn, Offload, RestoreTurn, Run, Sleep, Turn
from millstream.session.chunk import Chunk
from millstream.session.session import Session

log = logging.getLogger(__name__)


class TurnTaker:
    def __init__(
        self,
        engine: Engine,
        table: SessionTable,
        ahead: LookAhead,
        alike: Alike,
        lock: threading.Condition,
        *,
        is_over: Callable[[], bool],
    ) -> None:
        """`lock` is held where the table is touched, and never while the model works."""
        self._engine, self._table, self._lock, self._is_over = engine, table, lock, is_over
        self._ahead, self._alike = ahead, alike
        self._pipeline = ChunkPipeline(
            engine.transport.post,
            engine.depths,
            engine.parts.stopwatch,
            landed=self._landed,
            shown=self._shown,
            failed=self._failed,
        )

    @property
    def any_unshown(self) -> bool:
        """Whether there are pictures to make."""
        return self._pipeline.any_unshown

    def show(self) -> None:
        """Make all pictures that are due."""
        self._pipeline.show()

    def finish_closing(self) -> Sleep | None:
        """End those who are to end; one with pictures to come has them first, and nothing leaves until then."""
        closing = [(entry, entry.closing) for entry in self._table.entries.values() if entry.closing is not None]
        if any(self._pipeline.unshown(entry.session_id) for entry, _ in closing):
            return Sleep(until=None)
        for entry, ended in closing:
            if self._table.holds(entry):  # one in line may have been refused the place of another
                self._table.finish(entry, ended)
        return None

    def take(self, turn: Turn | Callable[[], None]) -> None:
        if isinstance(turn, Run):
            self._chunks([self._table.entries[name] for name in turn.session_ids])
            return
        self._pipeline.show()  # all else happens between chunks
        match turn:
            case EndTurn(session_id=name, reason=reason):
                with self._lock:
                    if name in self._table.entries:  # in line, it may have been refused in the meantime
                        self._table.finish(self._table.entries[name], Ended(cause="limit", reason=reason))
            case Offload(session_id=name):
                if self._moved(name, self._engine.offload):
                    with self._lock:
                        self._table.vacate(self._table.entries[name])
            case RestoreTurn(session_id=name):
                self._moved(name, self._engine.bring_back)
            case Sleep():
                pass  # nothing could leave before the pictures were made
            case _:
                turn()

    def _chunks(self, entries: Sequence[SessionEntry]) -> None:
        """One chunk of each session, or a reason why there is none. What can share its model calls does."""
        planned = self._plan(entries)
        if planned is None:
            self._pipeline.show()
            planned = self._plan(entries)
            assert planned is not None, "with everything shown, nothing waits for pictures"
        for kin in of_one_kind([chunk for chunk in planned if not self._taken(chunk)]):
            self._pipeline.turn(kin)

    def _taken(self, planned: Planned) -> bool:
        """Whether it was made, ahead or by another session, and is handed out, or its session has ended over that."""
        entry = self._table.entries[planned.session.id]
        with self.ending_alone(entry, chunk=planned.decision.envelope.chunk_index):
            taken = self._ahead.take(planned, entry) or self._shared(planned, entry)
            if not self._table.holds(entry):  # its last pictures could not be made
                return True
            if taken is not None:
                self._landed(taken[0])
                self._shown(*taken)
            return taken is not None
        return True

    def _shared(self, planned: Planned, entry: SessionEntry) -> tuple[Landing, Chunk] | None:
        """What a session that began alike has made, once the pictures before it are."""
        with self._lock:
            made = self._alike.find(planned, entry)
        if made is None:
            return None
        self._pipeline.show()
        return self._alike.take(planned, entry, made) if self._table.holds(entry) else None

    def _plan(self, entries: Sequence[SessionEntry]) -> list[Planned] | None:
        """The next chunk of those that have one. None, and nothing has happened, if one must be shown its last chunk first."""
        with self._lock:
            if any(self._pipeline.unshown(entry.session_id) and not self._table.goes_on(entry) for entry in entries):
                return None
            planned = list[Planned]()
            for entry in filter(self._table.holds, entries):  # the last pictures of one may have failed
                session = entry.session
                assert session is not None, f"{entry.session_id} had a turn before it was let in"
                with self.ending_alone(entry):
                    decision = session.decide() if self._table.has_input(entry) else None
                    if decision is None:
                        self._table.rest(entry, session)
                    else:
                        planned.append(Planned(session, decision, entry.settled))
                        entry.settled, entry.one_offs = NOTHING_SETTLED, self._engine.one_offs
            return planned

    def _landed(self, landing: Landing) -> None:
        """The next chunk may leave. On one device this one's pictures are made by now; over a mesh they follow meanwhile."""
        with self._lock:
            self._table.arrived(landing)

    def _shown(self, landing: Landing, chunk: Chunk) -> None:
        with self._lock:
            self._table.shown(landing, chunk)
        if not self._pipeline.num_sent:
            self._settle(landing.session, chunk)

    def _settle(self, session: Streaming, chunk: Chunk) -> None:
        """Make its commit, if that was left for now. What it took is the session's to pay for, in its next turn: of one that
        paid for those of others, too, chunks would look slow, and promises fall."""
        begun, entry = time.monotonic(), self._table.entries[session.id]
        with self.ending_alone(entry, chunk=chunk.index):
            self._engine.settle(session.id)
            entry.settled = Settled(time.monotonic() - begun, self._engine.parts.stopwatch.lap())

    def _failed(self, session: Streaming, error: Exception, chunk_index: int) -> None:
        self.fail(self._table.entries[session.id], error, chunk=chunk_index)

    @contextmanager
    def ending_alone(self, entry: SessionEntry, **about: object) -> Iterator[None]:
        """What goes wrong in the block ends this session and no other."""
        try:
            yield
        except Exception as error:
            self.fail(entry, error, **about)

    def fail(self, entry: SessionEntry, error: Exception, **about: object) -> None:
        if self._is_over() and isinstance(error, ChunkCut):
            return  # ends with all others
        log.error("the session has failed", exc_info=error, extra={"session": entry.label, **about})
        reason = str(error) if isinstance(error, MillstreamError) else f"it failed ({type(error).__name__}); the log has more"
        if isinstance(error, torch.OutOfMemoryError):
            reason = "the device ran out of memory; choose a smaller size or window"
        with self._lock:
            if self._table.holds(entry):  # it may have been given up while it was revived
                self._table.finish(entry, Ended(cause="failed", reason=reason))
        if self._engine.device.type == "cuda":
            torch.cuda.empty_cache()

    def _moved(self, session_id: str, move: Callable[[Session], None]) -> bool:
        """Whether its state is where it was to go; if not, it has ended."""
        entry = self._table.entries.get(session_id)
        if entry is None:  # its last pictures could not be made
            return False
        assert entry.session is not None, f"{entry.label} has no state to move"
        with self.ending_alone(entry):
            move(entry.session)
            return True
        return False
