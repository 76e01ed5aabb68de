"""What gateway and replica say to each other, over one WebSocket for as long as both live: reports one way, orders the other.

MessagePack. Every order is answered by `OrderDone` with its number. A link that breaks is how a death is noticed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.fleet.policy.types import FleetRequest, Replica
from millstream.serving.admission_types import AdmissionConfig, Request
from millstream.serving.chunk_times import Geometry

PATH = "/v1/fleet/link"


class SessionReport(msgspec.Struct, frozen=True, kw_only=True):
    asked: FleetRequest
    view_id: str
    can_move: bool
    """Whether everybody who watches goes along."""
    viewers: int
    chunk: int
    """The last that was made; -1 before the first."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Twice a second, and when a session came or went."""

    pool: str
    node: str
    version: str
    room: AdmissionConfig
    trouble: str
    """Why nobody can be served; empty when it is ready."""
    chunk_s: list[tuple[Geometry, float]]
    misses: int
    promised: float
    sessions: list[SessionReport]
    hello: bytes
    """What it says to clients first, as JSON."""
    pid: int = 0
    """Of the server, on its node."""

    def replica(self, replica_id: str) -> Replica:
        """As the policy is told."""
        return Replica(
            replica_id=replica_id,
            pool=self.pool,
            node=self.node,
            room=self.room,
            chunk_s=dict(self.chunk_s),
            recorded=frozenset(geometry for geometry, _ in self.chunk_s),  # what it has made lately, it is ready for
            version=self.version,
            misses=self.misses,
        )


class OrderDone(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    number: int
    error: str = ""
    code: str = ""
    request: Request | None = None
    """The answer to `Price` and `FindKept`."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what the gateway asks for."""

    number: int = 0


class Price(Order, frozen=True, kw_only=True, tag="price"):
    """What a session would take, of a `start` or of a REST body."""

    ask: dict[str, Any]
    key: str


class FindKept(Order, frozen=True, kw_only=True, tag="find kept"):
    """The same of a session whose state is in storage."""

    session_id: str
    key: str


class HandOverSession(Order, frozen=True, kw_only=True, tag="hand over"):
    """Stand still, and leave the state in storage. Without another word within `HELD_S` it goes on here."""

    session_id: str


class TakeOver(Order, frozen=True, kw_only=True, tag="take over"):
    """Go on with a session from its state in storage; done when it has its place, given up when it has none in time."""

    session_id: str
    key: str
    patience_s: float
    yields: bool = False
    """Whether it may have less than its rate where others need theirs."""


class Release(Order, frozen=True, kw_only=True, tag="release"):
    """It has been taken over at this address: send its people there."""

    session_id: str
    url: str
    replica_id: str


class GiveUp(Order, frozen=True, kw_only=True, tag="give up"):
    """It goes on elsewhere: end it here, and leave what is kept of it."""

    session_id: str


class TakeBack(Order, frozen=True, kw_only=True, tag="take back"):
    """It has not: go on here."""

    session_id: str


AnyOrder = Price | FindKept | HandOverSession | TakeOver | Release | GiveUp | TakeBack
FromReplica = Report | OrderDone
to_gateway: msgspec.msgpack.Decoder[FromReplica] = msgspec.msgpack.Decoder(FromReplica)
to_replica: msgspec.msgpack.Decoder[AnyOrder] = msgspec.msgpack.Decoder(AnyOrder)
encode = msgspec.msgpack.encode
