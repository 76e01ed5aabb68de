"""One session through a stream batch: planned ahead as far as the batch is deep, shown in order, nothing lost at a cut.

A chunk at which a control takes effect is planned when all before it are here: it may be built on them, or end their epoch.
The journal's receipts say which chunks those were, so a replay starts and ends every chunk where the first run did.
Whether the chunks are staggered in this process or on a mesh is the batch's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.envelope import check_under_way
from millstream.core.errors import ConfigError
from millstream.core.speed import Speed
from millstream.runtime.engine import Engine
from millstream.runtime.journal import ChunkLine
from millstream.runtime.mesh_batch import MeshBatch
from millstream.runtime.recovery import MeshTransport
from millstream.runtime.session import Chunk, Session
from millstream.runtime.stream_batch import StreamBatch
from millstream.wire.parcel import Delivery, Parcel


class Batch(Protocol):
    """Begins and ends chunks of one session, as deep as it is."""

    def push(self, parcel: Parcel) -> Iterable[Delivery]:
        """Begin one; those that are done, oldest first. It is begun when they are asked for."""

    def flush(self) -> Iterable[Delivery]:
        """End all that are under way."""


class StaggeredStream:
    def __init__(self, session: Session, batch: Batch) -> None:
        self._session, self._batch = session, batch

    def stream(self, num_frames: int | None, *, before_plan: Callable[[], None] = lambda: None) -> Iterator[Chunk]:
        """Chunks until the session ends, or as many as hold `num_frames` pictures: none is begun that is not shown.

        `before_plan` is called before a chunk is planned: the time to hand in controls for it.
        """
        planned = 0
        while num_frames is None or planned < num_frames:
            before_plan()
            if not self._session.timeline.undisturbed:
                yield from self._shown(self._batch.flush())
            parcel = self._session.plan_chunk()
            if parcel is None:
                break
            planned += pixel_frames(parcel.envelope.start_frame, parcel.envelope.frames)
            yield from self._shown(self._batch.push(parcel))
        yield from self._shown(self._batch.flush())

    def follow(self, lines: Iterable[ChunkLine]) -> Iterator[Chunk]:
        """The chunks of a journal again. After a crash its last ones were made while others that it lacks were under way."""
        for line in lines:
            if line.receipts or line.envelope.recompute:
                yield from self._shown(self._batch.flush())
            yield from self._shown(self._batch.push(self._session.follow(line.envelope)))
        yield from self._shown(self._batch.flush())

    def _shown(self, deliveries: Iterable[Delivery]) -> Iterator[Chunk]:
        for delivery in deliveries:
            chunk = self._session.accept(delivery)
            if chunk is not None:
                yield chunk


def staggered_stream(engine: Engine, session: Session, *, depth: int) -> StaggeredStream:
    """A session's stream with so many chunks under way, where the engine's generator is."""
    transport = engine.transport
    if isinstance(transport, MeshTransport):
        return StaggeredStream(session, MeshBatch(transport, session.id, depth=depth))
    return StaggeredStream(session, StreamBatch(engine.generator, depth=depth))


def refuse_stream_batch(depth: int, config: StreamConfig, speed: Speed, compile_backend: str = "") -> None:
    """Raise where a session's chunks cannot be staggered."""
    check_under_way(depth, window=config.window, sink=config.sink, frames=config.frames_per_chunk)
    if depth > 1 and config.anchor != "off":
        raise ConfigError(f"anchor {config.anchor} builds each chunk on the one before; a stream batch needs --anchor off")
    if depth > 1 and compile_backend:
        raise ConfigError("which frames a staggered chunk sees changes from call to call; a stream batch needs --compile off")
    if depth > 1 and speed.blocks:
        raise ConfigError("fast blocks end a chunk before the next begins; a stream batch needs --fast auto, off or decoder")
