"""A chunk step by step, without the pipeline: planned, made by whoever makes chunks, and shown."""

from __future__ import annotations

from millstream.session.chunk import PendingChunk
from millstream.session.ports import Transport
from millstream.session.session import Chunk, Session
from millstream.wire.parcel import Delivery, Parcel


def plan_chunk(session: Session) -> Parcel | None:
    """The next chunk of work, or None while paused and after the end."""
    decision = session.decide()
    return None if decision is None else session.prepare(decision)


def submit(transport: Transport, parcel: Parcel) -> Delivery:
    (delivery,) = transport.post([parcel]).result()
    return delivery


def accept(session: Session, delivery: Delivery) -> Chunk | None:
    """Its pictures. None for a duplicate, or a chunk from before a cut: never shown."""
    chunk = PendingChunk(session, plan=None)  # type: ignore[arg-type]  # its session knows the plan
    session.receive(chunk, delivery)
    return None if chunk.delivery is None else session.finish(chunk)
