"""One session's stream with several chunks under way in the generator itself: a stream batch, in this process
or on a mesh.

A chunk at which a control takes effect is planned when all before it are here: it may be built on them, or
end their epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from torch import Tensor

from millstream.core.config import StreamConfig
from millstream.core.envelope import check_under_way
from millstream.core.errors import ConfigError
from millstream.core.speed import Speed
from millstream.engine.depths import ONE_AT_A_TIME, Depths
from millstream.engine.engine import Engine
from millstream.engine.stream import Stream
from millstream.generation.stream_batch import StreamBatch
from millstream.mesh.recovery import MeshTransport
from millstream.session.session import Session
from millstream.wire.parcel import Delivery, Parcel, PendingDeliveries


@dataclass(frozen=True, slots=True)
class DoneDeliveries:
    """Deliveries that a stream batch in this process has finished. Chunks that were begun since may not be
    among them."""

    deliveries: list[Delivery]

    def done(self) -> bool:
        return True

    def ahead(self) -> list[Tensor]:
        return []

    def result(self) -> list[Delivery]:
        return self.deliveries


def staggered_stream(
    engine: Engine, session: Session, *, depth: int, before_plan: Callable[[], None] = lambda: None
) -> Stream:
    """A session's stream with so many chunks under way, where the engine's generator is."""
    session.trail.close()  # its chunks are never whole between each other
    transport = engine.transport
    stopwatch = engine.parts.stopwatch
    if isinstance(transport, MeshTransport):
        mesh = MeshBatch(transport, session.id, depth)
        depths = Depths(
            d_in=2, d_out=1
        )  # one message is with the mesh while what the one before it brought is shown
        return Stream(session, mesh.post, depths, stopwatch, flush=mesh.flush, before_plan=before_plan)
    batch = StreamBatch(engine.generator, depth=depth)

    def post(parcels: Sequence[Parcel]) -> PendingDeliveries:
        (parcel,) = parcels
        return DoneDeliveries(batch.push(parcel))

    return Stream(
        session,
        post,
        ONE_AT_A_TIME,
        stopwatch,
        flush=lambda: DoneDeliveries(batch.flush()),
        before_plan=before_plan,
    )


@dataclass(frozen=True, slots=True)
class MeshBatch:
    """The front's end of a stream batch that is staggered on a mesh: every rank pushes and flushes as the
    front says."""

    transport: MeshTransport
    session_id: str
    depth: int

    def post(self, parcels: Sequence[Parcel]) -> PendingDeliveries:
        """Its answer brings those that are done by then."""
        (parcel,) = parcels
        envelope = msgspec.structs.replace(parcel.envelope, under_way=self.depth)
        return self.transport.post([replace(parcel, envelope=envelope)])

    def flush(self) -> PendingDeliveries:
        """End all chunks under way."""
        return self.transport.flush(self.session_id)


def refuse_stream_batch(depth: int, config: StreamConfig, speed: Speed, compile_backend: str = "") -> None:
    """Raise where a session's chunks cannot be staggered."""
    check_under_way(depth, window=config.window, sink=config.sink, frames=config.frames_per_chunk)
    if depth > 1 and config.anchor != "off":
        raise ConfigError(
            f"anchor {config.anchor} builds each chunk on the one before; a stream batch needs --anchor off"
        )
    if depth > 1 and config.sampler != "renoise":
        raise ConfigError(
            f"a stream batch is measured with --sampler renoise alone; {config.sampler} needs a depth of 1"
        )
    if depth > 1 and compile_backend:
        raise ConfigError(
            "which frames a staggered chunk sees changes from call to call; a stream batch needs --compile off"
        )
    if depth > 1 and speed.blocks:
        raise ConfigError(
            "fast blocks end a chunk before the next begins; a stream batch needs --fast auto, off or decoder"
        )
