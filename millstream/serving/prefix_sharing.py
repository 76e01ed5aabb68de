"""Sessions that begin alike share what they hold until they part: a chunk that one has made, the other has.

Chunks are known by all that led to them (`Trail.path`): a session whose next chunk is planned as another's
was, after the same past, takes that one's latents and refers to its pages of keys and values instead of
filling its own. It needs the other to stand right behind that chunk, or to have kept its state there. Equal
envelopes from one past give equal bits, so it is as if each had been alone; a control that one of them gets
makes its next envelope another, and they part without a word.

Not where calls are shared or commits are paired: their bits depend on company. The engine's thread.
"""

from __future__ import annotations

import time
from dataclasses import replace

from millstream.engine.engine import Engine
from millstream.serving.session_entry import SessionEntry
from millstream.serving.session_table import SessionTable
from millstream.session.chunk import Chunk, PendingChunk
from millstream.session.forks import take_made
from millstream.session.session import Session
from millstream.session.trail import MadeChunk

NOTHING_LEARNT = -1
"""Marker of a chunk that was taken, not made: how long it took says nothing of the next."""


class PrefixSharing:
    def __init__(self, engine: Engine, table: SessionTable, *, is_on: bool) -> None:
        self._engine = engine
        self._table = table
        self._is_on = is_on and not engine.speed.paired_commits

    def find(self, pending: PendingChunk, entry: SessionEntry) -> MadeChunk | None:
        """Return a planned chunk as another session has made it. Under the service's lock."""
        session = entry.session
        envelope = pending.envelope
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

    def take_shared(self, pending: PendingChunk, entry: SessionEntry, made: MadeChunk) -> Chunk | None:
        """Take over a chunk that another session has made. None, and nothing has happened, where there is no
        room for it or the generator has lost it."""
        start_s = time.monotonic()
        session = entry.session
        assert session is not None, f"{entry.label} planned a chunk before it was let in"
        if not take_made(session, pending, made, self._engine.transport):
            return None
        entry.shared += 1
        entry.one_offs = NOTHING_LEARNT
        chunk = session.finish(pending)
        pending.made_before(start_s, shares_device=self._engine.depths.shares_device)
        return chunk

    def _are_alike(self, entry: SessionEntry, other: SessionEntry) -> bool:
        """Return whether two sessions agree in all that a chunk depends on and its envelope does not say, and
        both are on the device."""
        return (
            other.session is not None
            and other.request.owner == entry.request.owner
            and replace(other.request.config, fps=entry.request.config.fps) == entry.request.config
            and self._table.scheduler.is_at_rest(other.session_id)
        )


def _stands_at(session: Session) -> int | None:
    """Return the chunk before which the generator holds it; None where it is on its way."""
    return None if session.num_under_way or not session.undisturbed else session.timeline.chunk_index
