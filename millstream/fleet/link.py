"""Messages between gateway and replica, over one WebSocket for as long as both live: reports one way, orders
the other.

MessagePack. Every order is answered by `OrderDone` with its number. A link that breaks is how a death is
noticed.
"""

from __future__ import annotations

import msgspec

from millstream.fleet.policy.types import FleetRequest, Replica
from millstream.serving.admission_types import AdmissionConfig, Request
from millstream.serving.chunk_times import Geometry


class SessionReport(msgspec.Struct, frozen=True, kw_only=True):
    asked: FleetRequest
    view_id: str
    other_views: tuple[str, ...] = ()
    """Links of branches that ended when it was kept."""
    can_move: bool
    """True if all its viewers can go along."""
    viewers: int
    chunk: int
    """Index of the last chunk that was made; -1 before the first."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Report on the replica, sent twice a second and when a session came or went."""

    pool: str
    node: str
    version: str
    room: AdmissionConfig
    trouble: str
    """Reason why no session can be served; empty when it is ready."""
    chunk_s: list[tuple[Geometry, float]]
    misses: int
    promised: float
    sessions: list[SessionReport]
    hello: bytes
    """First message that it sends to clients, as JSON."""
    pid: int = 0
    """Process id of the server, on its node."""

    def replica(self, replica_id: str) -> Replica:
        """Return the report as the policy takes it."""
        return Replica(
            replica_id=replica_id,
            pool=self.pool,
            node=self.node,
            room=self.room,
            chunk_s=dict(self.chunk_s),
            recorded=frozenset(
                geometry for geometry, _ in self.chunk_s
            ),  # what it has made lately, it is ready for
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
    """Base of the gateway's orders."""

    number: int = 0


class Price(Order, frozen=True, kw_only=True, tag="price"):
    """Ask what a session would take, of a `start` or of a REST body."""

    ask: bytes
    """An `Ask` as JSON: a number in it may be larger than MessagePack has."""
    key: str


class FindKept(Order, frozen=True, kw_only=True, tag="find kept"):
    """Ask what a session whose state is in storage would take."""

    session_id: str
    key: str


class HandOverSession(Order, frozen=True, kw_only=True, tag="hand over"):
    """Stand still, and leave the state in storage. Without another word within `HELD_S` it goes on here."""

    session_id: str


class TakeOver(Order, frozen=True, kw_only=True, tag="take over"):
    """Go on with a session from its state in storage; done when it has its place, given up when it has none
    in time."""

    session_id: str
    key: str
    patience_s: float
    yields: bool = False
    """True if it may have less than its rate where others need theirs."""


class Release(Order, frozen=True, kw_only=True, tag="release"):
    """The session has been taken over at this address: send its clients there."""

    session_id: str
    url: str
    replica_id: str


class GiveUp(Order, frozen=True, kw_only=True, tag="give up"):
    """The session goes on elsewhere: end it here, and leave what is kept of it."""

    session_id: str


class TakeBack(Order, frozen=True, kw_only=True, tag="take back"):
    """The session was not taken over elsewhere: go on here."""

    session_id: str


AnyOrder = Price | FindKept | HandOverSession | TakeOver | Release | GiveUp | TakeBack
FromReplica = Report | OrderDone
to_gateway: msgspec.msgpack.Decoder[FromReplica] = msgspec.msgpack.Decoder(FromReplica)
to_replica: msgspec.msgpack.Decoder[AnyOrder] = msgspec.msgpack.Decoder(AnyOrder)
encode = msgspec.msgpack.encode
