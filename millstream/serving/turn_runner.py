"""Work of the engine's thread in a turn: chunks are planned, made and shown, sessions moved and ended.

A session that fails ends alone and gives back what it held (`serving/shared_table.py`, whose lock is held
where the table is touched). Knows neither which client opens a session nor when the thread ends: that is
`serving/service.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from millstream.engine.engine import Engine
from millstream.engine.pipeline import ChunkPipeline
from millstream.serving.look_ahead import LookAhead
from millstream.serving.notices import Ended
from millstream.serving.prefix_sharing import PrefixSharing
from millstream.serving.session_entry import SessionEntry, of_one_kind
from millstream.serving.shared_table import SharedTable
from millstream.serving.turns import EndTurn, Offload, RestoreTurn, Run, Sleep, Turn
from millstream.session.chunk import NO_COMMIT, Chunk, CommitCost, PendingChunk
from millstream.session.session import Session


class TurnRunner:
    def __init__(
        self,
        engine: Engine,
        shared: SharedTable,
        ahead: LookAhead,
        sharing: PrefixSharing,
    ) -> None:
        self._engine = engine
        self._shared = shared
        self._table = shared.table
        self._ahead = ahead
        self._sharing = sharing
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
        """True if there are frames to make."""
        return self._pipeline.any_unshown

    def show(self) -> None:
        """Make all frames that are due."""
        self._pipeline.show()

    def finish_closing(self) -> Sleep | None:
        """End sessions that are to end; one with frames to come has them first, and nothing leaves until
        then."""
        closing = [
            (entry, entry.closing) for entry in self._table.entries.values() if entry.closing is not None
        ]
        if any(self._pipeline.unshown(entry.session_id) for entry, _ in closing):
            return Sleep(until=None)
        for entry, ended in closing:
            if self._table.holds(entry):  # one in line may have been refused the place of another
                self._table.finish(entry, ended)
        return None

    def run(self, turn: Turn | Callable[[], None]) -> None:
        if isinstance(turn, Run):
            self._chunks([self._table.entries[name] for name in turn.session_ids])
            return
        self._pipeline.show()  # all else happens between chunks
        match turn:
            case EndTurn(session_id=name, reason=reason):
                with self._shared:
                    if name in self._table.entries:  # in line, it may have been refused in the meantime
                        self._table.finish(self._table.entries[name], Ended(cause="limit", reason=reason))
            case Offload(session_id=name):
                if self._moved(name, self._engine.offload):
                    with self._shared:
                        self._table.vacate(self._table.entries[name])
            case RestoreTurn(session_id=name):
                self._moved(name, self._engine.bring_back)
            case Sleep():
                pass  # nothing could leave before the frames were made
            case _:
                turn()

    def _chunks(self, entries: Sequence[SessionEntry]) -> None:
        """Make one chunk of each session, or find the reason why there is none. Chunks that can share their
        model calls do."""
        chunks = self._plan(entries)
        if chunks is None:
            self._pipeline.show()
            chunks = self._plan(entries)
            assert chunks is not None, "with everything shown, nothing waits for frames"
        for batch in of_one_kind([chunk for chunk in chunks if not self._was_made(chunk)]):
            self._pipeline.turn(batch)  # sends these, and makes the frames of the turn before meanwhile

    def _was_made(self, pending: PendingChunk) -> bool:
        """Hand out a chunk that was made before, ahead or by another session. Return whether that was done;
        true also if its session has ended over that."""
        entry = self._table.entries[pending.session.id]
        with self._shared.ending_alone(entry, chunk=pending.envelope.chunk_index):
            chunk = self._ahead.take_guessed(pending, entry) or self._made_by_another(pending, entry)
            if not self._table.holds(entry):  # its last frames could not be made
                return True
            if chunk is not None:
                self._landed(pending)
                self._shown(pending, chunk)
            return chunk is not None
        return True

    def _made_by_another(self, pending: PendingChunk, entry: SessionEntry) -> Chunk | None:
        """Take the chunk that a session that began alike has made, once this session's frames before it are
        made; None if there is none."""
        with self._shared:
            made = self._sharing.find(pending, entry)
        if made is None:
            return None
        self._pipeline.show()
        return self._sharing.take_shared(pending, entry, made) if self._table.holds(entry) else None

    def _plan(self, entries: Sequence[SessionEntry]) -> list[PendingChunk] | None:
        """Plan the next chunk of those that have one. None, and nothing has happened, if one must be shown
        its last chunk first."""
        with self._shared:
            # Asked of all before the first is decided: `decide` moves a timeline on, so a turn is planned
            # wholly or not at all.
            if any(
                self._pipeline.unshown(entry.session_id) and not self._table.goes_on(entry)
                for entry in entries
            ):
                return None
            chunks = list[PendingChunk]()
            for entry in filter(self._table.holds, entries):  # the last frames of one may have failed
                session = entry.session
                assert session is not None, f"{entry.session_id} had a turn before it was let in"
                with self._shared.ending_alone(entry):
                    plan = session.decide() if self._table.has_input(entry) else None
                    if plan is None:
                        self._table.rest(entry, session)
                    else:
                        chunks.append(PendingChunk(session, plan, entry.commit_cost))
                        entry.commit_cost = NO_COMMIT
                        entry.one_offs = self._engine.one_offs
            return chunks

    def _landed(self, pending: PendingChunk) -> None:
        """Note that a chunk is back, so the next may leave. On one device its frames are made by now; over
        a mesh they follow meanwhile."""
        with self._shared:
            self._table.arrived(pending)

    def _shown(self, pending: PendingChunk, chunk: Chunk) -> None:
        with self._shared:
            self._table.shown(pending, chunk)
        # Only while nothing is under way: a device at work would be kept from the next chunk, before which
        # the generator makes the commit anyhow.
        if not self._pipeline.num_sent:
            self._run_commit(self._table.entries[pending.session.id], chunk)

    def _run_commit(self, entry: SessionEntry, chunk: Chunk) -> None:
        """Make its commit, if that was left for now. The session itself pays for it, in its next turn: the
        chunks of a session that also paid for others' commits would look slow, and promises would fall."""
        start_s = time.monotonic()
        with self._shared.ending_alone(entry, chunk=chunk.index):
            self._engine.run_commit(entry.session_id)
            entry.commit_cost = CommitCost(time.monotonic() - start_s, self._engine.parts.stopwatch.lap())

    def _failed(self, pending: PendingChunk, error: Exception) -> None:
        entry = self._table.entries[pending.session.id]
        self._shared.fail(entry, error, chunk=pending.envelope.chunk_index)

    def _moved(self, session_id: str, move: Callable[[Session], None]) -> bool:
        """Move a session's state. Return whether it is where it was to go; if not, the session has ended."""
        entry = self._table.entries.get(session_id)
        if entry is None:  # its last frames could not be made
            return False
        assert entry.session is not None, f"{entry.label} has no state to move"
        with self._shared.ending_alone(entry):
            move(entry.session)
            return True
        return False
