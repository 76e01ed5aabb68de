"""Sessions that begin alike share what they hold until they part: a chunk that one has made, the other has.

Chunks are known by all that led to them (`Trail.path`): a session whose next chunk is planned as another's was, after the same
past, takes that one's latents and refers to its pages of keys and values instead of filling its own. It needs the other to
stand right behind that chunk, or to have kept its state there. Equal envelopes from one past give equal bits, so it is as if
each had been alone; a control that one of them gets makes its next envelope another, and they part without a word.

Not where calls are shared or commits are paired: their bits depend on company. The engine's thread.
"""

from __future__ import annotations

import time
from dataclasses import replace

from millstream.engine.engine import Engine
from millstream.engine.flights import Landing, Planned
from millstream.serving.look_ahead import landing_of
from millstream.serving.session_entry import SessionEntry
from millstream.serving.session_table import SessionTable
from millstream.session.chunk import Chunk
from millstream.session.forks import take_made
from millstream.session.session import Session
from millstream.session.trail import MadeChunk

NOTHING_LEARNT = -1
"""Of a chunk that was not made, how long it took says nothing of the next."""


class Alike:
    def __init__(self, engine: Engine, table: SessionTable, *, is_on: bool) -> None:
        self._engine, self._table = engine, table
        self._is_on = is_on and not engine.speed.paired_commits

    def find(self, planned: Planned, entry: SessionEntry) -> MadeChunk | None:
        """A planned chunk as another session has made it. Under the service's lock."""
        session, envelope = entry.session, planned.decision.envelope
        if not self._is_on or session is None or session.has_input or len(self._table.entries) < 2:
            return None
        path = session.trail.path(envelope.chunk_index)
        for other in self._table.entries.values() if path else ():
            if other is not entry and self._are_alike(entry, other):
                assert other.session is not None, f"{other.label} was never let in"
                made = other.session.trail.made_after(path, envelope, standing_at=_stands_at(other.session))
                if made is not None:
                    return made
        return None

    def take(self, planned: Planned, entry: SessionEntry, made: MadeChunk) -> tuple[Landing, Chunk] | None:
        """None, and nothing has happened, where there is no room for it or the generator has lost it."""
        begun, session, envelope = time.monotonic(), entry.session, planned.decision.envelope
        assert session is not None, f"{entry.label} planned a chunk before it was let in"
        received = take_made(session, envelope, made, self._engine.transport)
        if received is None:
            return None
        entry.shared, entry.one_offs = entry.shared + 1, NOTHING_LEARNT
        chunk = session.finish(received, before_s=planned.settled.seconds)
        return landing_of(self._engine, session, received, planned.settled, begun), chunk

    def _are_alike(self, entry: SessionEntry, other: SessionEntry) -> bool:
        """In all that a chunk depends on and its envelope does not say, and both on the device."""
        return (
            other.session is not None
            and other.request.owner == entry.request.owner
            and replace(other.request.config, fps=entry.request.config.fps) == entry.request.config
            and self._table.scheduler.is_at_rest(other.session_id)
        )


def _stands_at(session: Session) -> int | None:
    """The chunk before which the generator holds it; None where it is on its way."""
    return None if session.num_under_way or not session.undisturbed else session.timeline.chunk_index
