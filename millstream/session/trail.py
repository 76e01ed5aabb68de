"""Past that a session can go back to: the clean latents of its latest chunks, and every few chunks a whole
state.

A state is what the session was before a chunk: its timeline, its window's clean latents, the decoder's past,
and a copy of its keys and values in the generator, under a name of its own. Its parts are known at different
times (a chunk may be planned while the pictures of the one before are made), so each is put here when it is
true. Bounded by a `RewindConfig`: the oldest states go first, then the oldest latents.
Shapes: see `session/history.py`.
"""

from __future__ import annotations

import hashlib
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import torch
from torch import Tensor

from millstream.core.envelope import Envelope
from millstream.core.errors import ControlError, PoolFull
from millstream.core.rewind import NO_REWIND, RewindConfig
from millstream.models.carry import VAEState
from millstream.session.history import History, HistoryState
from millstream.session.journal import ChunkLine
from millstream.session.ports import Transport
from millstream.session.timeline import Timeline, TimelineState

BEGINNING = b"the beginning"


@dataclass(slots=True)
class PastChunk:
    """The moment before a chunk, and the chunk itself once it is made."""

    timeline: TimelineState | None = None
    history: HistoryState | None = None
    decoder: VAEState | None = None
    """Only of a whole state; empty at an epoch's start."""
    cache_id: str | None = None
    """The generator's copy, of a whole state; empty where the chunk needs none. None: this is no whole
    state."""
    line: ChunkLine | None = None
    path: bytes = b""
    """Digest of all that led here; empty where that is not known."""
    is_dropped: bool = False
    """Its whole state was given up or could not be kept: a decoder's past that comes later has nothing to go
    with."""

    @property
    def is_whole(self) -> bool:
        return self.cache_id is not None and self.decoder is not None and self.can_be_rebuilt

    @property
    def can_be_rebuilt(self) -> bool:
        return self.timeline is not None and self.history is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeChunk:
    """A chunk that a session has made, for another to which the same has happened."""

    history: HistoryState
    """Window after it: its latents are the newest."""
    cache_id: str
    """Name of what the generator holds after it."""
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """Point at which a session begins that goes back: at a whole state, with the chunks that lead from there
    to the asked one, or, where there is none, at the asked chunk with the window rebuilt."""

    chunk_index: int
    timeline: TimelineState
    """Timeline before the asked chunk."""
    history: HistoryState
    decoder: VAEState | None
    """Decoder's past. None: it is made anew from the window's latents."""
    cache_id: str
    again: tuple[ChunkLine, ...] = ()

    @property
    def exact(self) -> bool:
        """True if what follows has the bits it would have had."""
        return self.decoder is not None


class Trail:
    def __init__(self, session_id: str, limits: RewindConfig, transport: Transport, ring_bytes: int) -> None:
        """`ring_bytes` are those of the session's keys and values."""
        self._session_id = session_id
        self._limits = limits
        self._transport = transport
        self._ring_bytes = ring_bytes
        self._past: dict[int, PastChunk] = {}
        """Past chunks, in order."""
        self._copies: set[str] = set()
        self.begin(0, HistoryState(), ())
        if self.keeps:
            self._at(0).path = BEGINNING
        self._release = weakref.finalize(
            self, _release, transport, self._copies
        )  # also when it is merely dropped

    def close(self) -> None:
        """Give back what it holds and keep nothing more."""
        self._limits = NO_REWIND
        self._past.clear()
        self._release()

    @property
    def keeps(self) -> bool:
        return self._limits.latents > 0

    @property
    def cache_ids(self) -> tuple[str, ...]:
        """Names of what the generator holds for it."""
        return tuple(self._copies)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Chunks that can be gone back to."""
        return tuple(index for index, past in list(self._past.items()) if past.can_be_rebuilt)

    @property
    def states(self) -> tuple[int, ...]:
        """Chunks before which a whole state is kept."""
        return tuple(index for index, past in list(self._past.items()) if past.is_whole)

    def begin(self, chunk_index: int, history: HistoryState, decoder: VAEState) -> None:
        """Keep what its first chunk, or the first after it went back, finds."""
        if not self.keeps:
            return
        past = self._at(chunk_index)
        past.history = history
        past.decoder = decoder if self._keeps_state(chunk_index) else None
        past.is_dropped = False

    def planned(self, timeline: Timeline) -> None:
        """Keep the timeline when the next chunk is about to be planned: controls that are due then are not
        part of what is kept, those for later are. The first time counts: a session that is paused is asked
        again and again."""
        if self.keeps:
            past = self._at(timeline.chunk_index)
            past.timeline = past.timeline or timeline.state().between_chunks()

    def copy_cache(self, chunk_index: int) -> None:
        """Keep what the generator has by now, before a chunk is sent, if a state is kept there. Without the
        memory for it, the session goes on without it."""
        past = self._past.get(chunk_index)
        if (
            past is None
            or past.timeline is None
            or past.cache_id is not None
            or not self._keeps_state(chunk_index)
        ):
            return
        name = f"{self._session_id}@{chunk_index}"
        if past.timeline.pending.init_cache:
            past.cache_id = ""
        else:
            with suppress(torch.OutOfMemoryError, PoolFull):
                past.cache_id = name if self._transport.fork(self._session_id, name) else None
        if past.cache_id:
            self._copies.add(name)
        if past.cache_id is None:
            self._drop_state(past)
        self._drop_oldest_states()

    def received(self, chunk_index: int, history: History) -> None:
        if self.keeps:
            self._at(chunk_index + 1).history = history.state()

    def decoded(self, chunk_index: int, decoder: VAEState) -> None:
        """Keep the decoder's past after a chunk. Over a mesh this comes after the next chunk's cache was
        copied, or was not."""
        if self._keeps_state(chunk_index + 1):
            after = self._at(chunk_index + 1)
            after.decoder = None if after.is_dropped else decoder

    def made(self, line: ChunkLine) -> None:
        if self.keeps:
            past = self._at(line.envelope.chunk_index)
            past.line = line
            after = self._at(line.envelope.chunk_index + 1)
            after.path = _path(past.path, line.envelope)
        while len(self._past) > self._limits.latents + 1:
            self._drop_state(self._past.pop(next(iter(self._past))))

    def find(self, chunk_index: int) -> Restart:
        """Return where to begin for this chunk to be next."""
        asked = self._past.get(chunk_index)
        if asked is None or asked.timeline is None or asked.history is None:
            raise ControlError(f"chunk {chunk_index} is not kept; {self._kept()}")
        return self._exact(chunk_index, asked.timeline) or Restart(
            chunk_index=chunk_index,
            timeline=asked.timeline.rebuilding(),
            history=asked.history,
            decoder=None if asked.history.tensors else (),
            cache_id="",
        )

    def path(self, chunk_index: int) -> bytes:
        """Return the digest of all that led to before this chunk; empty where that is not known."""
        past = self._past.get(chunk_index)
        return b"" if past is None else past.path

    def made_after(self, path: bytes, envelope: Envelope, *, standing_at: int | None) -> MadeChunk | None:
        """Return a chunk that says the same, after the same, if the generator still holds what came of it: as
        a kept state, or because the session stands there, if it stands."""
        past = self._past.get(envelope.chunk_index)
        after = self._past.get(envelope.chunk_index + 1)
        if past is None or after is None or past.path != path or past.line is None or after.history is None:
            return None
        cache_id = self._session_id if standing_at == envelope.chunk_index + 1 else after.cache_id
        if not cache_id or past.line.envelope.what_it_says != envelope.what_it_says:
            return None
        return MadeChunk(history=after.history, cache_id=cache_id, digest=past.line.digest)

    def lose_states(self) -> None:
        """Drop all whole states: the generator has lost its copies; latents are left."""
        for past in self._past.values():
            self._drop_state(past)

    def forget_from(self, chunk_index: int) -> None:
        """Forget what came from this chunk on: the session has gone back, and it did not happen."""
        for index in [index for index in self._past if index > chunk_index]:
            self._drop_state(self._past.pop(index))
        if chunk_index in self._past:
            self._past[chunk_index].line = self._past[chunk_index].timeline = None

    def move(self, device: torch.device) -> None:
        """Move its tensors; those that several chunks share stay shared."""
        moved: dict[int, Tensor] = {}

        def once(tensor: Tensor) -> Tensor:
            return moved.setdefault(id(tensor), tensor.to(device))

        for past in self._past.values():
            if past.history is not None:
                tensors = {name: once(tensor) for name, tensor in past.history.tensors.items()}
                past.history = replace(past.history, tensors=tensors)
            past.decoder = past.decoder and tuple(once(tensor) for tensor in past.decoder)

    def _exact(self, chunk_index: int, timeline: TimelineState) -> Restart | None:
        """Return a restart from the last whole state before the chunk, if all chunks since are known."""
        again: list[ChunkLine] = []
        for index in range(chunk_index, -1, -1):
            past = self._past.get(index)
            if past is None or (index < chunk_index and past.line is None):
                return None
            if index < chunk_index:
                assert past.line is not None
                again.insert(0, past.line)
            if past.is_whole:
                assert past.history is not None
                assert past.cache_id is not None
                return Restart(
                    chunk_index=index,
                    timeline=timeline,
                    history=past.history,
                    decoder=past.decoder,
                    cache_id=past.cache_id,
                    again=tuple(again),
                )
        return None

    def _at(self, chunk_index: int) -> PastChunk:
        return self._past.setdefault(chunk_index, PastChunk())

    def _keeps_state(self, chunk_index: int) -> bool:
        return self.keeps and self._limits.states > 0 and chunk_index % self._limits.every == 0

    def _drop_oldest_states(self) -> None:
        states = [past for past in self._past.values() if past.cache_id is not None]
        decoder = max((_num_bytes(past.decoder or ()) for past in states), default=0)
        for past in states[: max(0, len(states) - self._limits.num_states(self._ring_bytes + decoder))]:
            self._drop_state(past)

    def _drop_state(self, past: PastChunk) -> None:
        if past.cache_id:
            self._copies.discard(past.cache_id)
            self._transport.release(past.cache_id)
        past.cache_id = past.decoder = None
        past.is_dropped = True

    def _kept(self) -> str:
        if not self.keeps:
            return "this session keeps no earlier chunks: serve --rewind 8, or RewindConfig in Python"
        chunks = self.chunks
        return (
            f"kept are {chunks[0]} to {chunks[-1]}"
            if chunks
            else "nothing is kept before its first chunk is made"
        )


def _path(path: bytes, envelope: Envelope) -> bytes:
    """Return the path with one more chunk; empty where the path is not known."""
    said = msgspec.msgpack.encode(envelope.what_it_says)
    return hashlib.blake2b(path + said, digest_size=16).digest() if path else b""


def _num_bytes(tensors: VAEState) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _release(transport: Transport, copies: set[str]) -> None:
    for name in tuple(copies):
        transport.release(name)
    copies.clear()
