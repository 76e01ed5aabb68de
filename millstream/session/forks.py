"""Start of a branch of a session, and the way in which a session becomes what another was: exactly, or
rebuilt from clean latents.

Exact where a whole state is kept: the chunks between it and the asked one are made again from their
envelopes. A rebuild is as on a new mesh (`mesh/recovery.py`): the window's keys and values, and the decoder's
past, are made from what is left of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import torch

from millstream.core.config import StreamConfig
from millstream.core.envelope import Result
from millstream.core.errors import ControlError, PoolFull
from millstream.models.carry import VAE, VAEState
from millstream.session.chunk import PendingChunk
from millstream.session.history import History, HistoryState
from millstream.session.journal import ChunkLine, ParentJournal
from millstream.session.ports import Transport
from millstream.session.state import SessionState
from millstream.session.timeline import Timeline
from millstream.session.trail import MadeChunk, Restart, Trail
from millstream.wire.parcel import Delivery


class Forkable(Protocol):
    """Interface that a session needs to be forked."""

    id: str
    config: StreamConfig
    timeline: Timeline
    trail: Trail
    again: deque[ChunkLine]
    num_lines: int

    @property
    def ended(self) -> bool: ...

    @property
    def num_under_way(self) -> int: ...

    @property
    def has_input(self) -> bool: ...

    def receive(self, chunk: PendingChunk, delivery: Delivery) -> None: ...

    def state(self) -> SessionState: ...

    def resume(self, state: SessionState, again: Sequence[ChunkLine] = ()) -> None: ...


def restart_at(session: Forkable, chunk_index: int | None = None) -> Restart:
    """Find where a branch begins, or the session when it goes back: as it is now, or before a chunk that is
    kept."""
    _refuse_going_back(session)
    if chunk_index is None or chunk_index == session.timeline.chunk_index:
        return _now(session)
    restart = session.trail.find(chunk_index)
    if not restart.exact and session.config.anchor == "decoded":
        raise ControlError(
            f"of chunk {chunk_index} only latents are kept, and with decoded anchors these are not enough"
        )
    return restart


def as_parent(session: Forkable, restart: Restart, path: str) -> ParentJournal:
    """How the journal of a branch names its parent's, which lies at `path` seen from its own folder."""
    return ParentJournal(session_id=session.id, path=path, chunk=restart.chunk_index, lines=session.num_lines)


def begin_at(
    session: Forkable, restart: Restart, origin: Forkable, transport: Transport, vae: VAE
) -> Restart:
    """Make a session what `origin` was there. Returns where it really begins: nearby, with the window
    rebuilt, where a mesh was lost and what it held of `origin` with it."""
    if restart.cache_id not in ("", session.id) and not transport.fork(restart.cache_id, session.id):
        restart = _without_copies(restart, origin)
    decoder = _warmed(vae, restart.history) if restart.decoder is None else restart.decoder
    state = SessionState(
        timeline=restart.timeline,
        history=restart.history,
        decoder=decoder,
        encoder=(),
        last_input=None,
        motion=None,
    )
    session.resume(state, restart.again)
    return restart


def take_made(session: Forkable, chunk: PendingChunk, made: MadeChunk, transport: Transport) -> bool:
    """Take the chunk that a session has just planned as another has made it after the same past. False, and
    nothing has happened, where the generator has no room for it, or has lost it."""
    envelope = chunk.envelope
    session.trail.copy_cache(envelope.chunk_index)
    with suppress(PoolFull, torch.OutOfMemoryError):
        if transport.fork(made.cache_id, session.id):
            result = Result(
                call_id=envelope.call_id,
                session_id=session.id,
                chunk_index=envelope.chunk_index,
                cache_epoch=envelope.cache_epoch,
                ok=True,
                end_frame=envelope.end_frame,
                digest=made.digest,
            )
            latents = History.from_state(made.history).context(
                tuple(range(envelope.start_frame, envelope.end_frame))
            )
            session.receive(chunk, Delivery(result=result, latents_out=latents))
            return chunk.delivery is not None
    return False


def _now(session: Forkable) -> Restart:
    state = session.state()
    again = tuple(session.again)
    holds = bool(again) or not state.timeline.pending.init_cache
    return Restart(
        chunk_index=state.timeline.chunk_index - len(again),
        timeline=state.timeline,
        history=state.history,
        decoder=state.decoder,
        cache_id=session.id if holds else "",
        again=again,
    )


def _without_copies(restart: Restart, origin: Forkable) -> Restart:
    if restart.cache_id == origin.id:
        return replace(restart, timeline=restart.timeline.rebuilding(), cache_id="")
    origin.trail.lose_states()
    return origin.trail.find(restart.timeline.chunk_index)


@torch.inference_mode()
def _warmed(vae: VAE, history: HistoryState) -> VAEState:
    """A decoder's past, from the latents that are left of it."""
    _, state = vae.decode(History.from_state(history).newest_run(), ())
    return state


def _refuse_going_back(session: Forkable) -> None:
    if session.ended:
        raise ControlError("the session has ended; only a live one can be forked or rewound")
    if session.has_input:
        raise ControlError(
            "a session with an input video cannot be forked or rewound: its input does not come again"
        )
    if session.num_under_way:
        raise ControlError(f"{session.num_under_way} chunks are under way; fork or rewind when they are here")
