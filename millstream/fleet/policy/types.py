"""Inputs and decisions of a fleet's policy. Plain data; `fleet/policy/fleet_policy.py` decides.

A session is asked for as on one server (`serving/admission_types.py`: geometry, pace, bytes, weight), under
some key. A replica reports what its own admission goes by: its room and the chunk times that it counts on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from millstream.core.errors import ConfigError
from millstream.serving.admission_types import AdmissionConfig, Queued, Refused, Request
from millstream.serving.chunk_times import Geometry

Placement = Literal["pack", "spread"]
"""Onto the fullest replica that has room, so that others can be given back; or onto the emptiest, which has
most head room."""
MoveReason = Literal["drain", "deploy", "scale-in", "hot", "asked"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetRequest:
    """A session that wants a place on some replica of `request.geometry.model`."""

    request: Request
    """Request as it will be sent to the replica."""
    key: str = ""
    """Name of the key that opened it; quotas count by it."""

    @property
    def session_id(self) -> str:
        return self.request.session_id

    @property
    def model(self) -> str:
        return self.request.geometry.model


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Replicas that are alike: one model in one topology, and how many of them there may be."""

    name: str
    model: str
    """As in a geometry: the registered name."""
    gpus: int = 0
    """GPUs that one replica takes."""
    minimum: int = 1
    maximum: int = 1
    warm: int = 0
    """Replicas' worth of room kept free beyond what is promised."""
    line: int = 0
    """How many may wait before there is one more replica."""
    start_s: float = 60.0
    """From `StartReplica` to ready, until that was seen."""
    idle_s: float = 300.0
    """A replica that was not needed for so long is given back."""
    surge: int = 1
    """Replicas above the maximum while a deploy is under way; 0 drains one before the next is started."""
    dollars_per_hour: float = 0.0
    """Price of one replica."""
    version: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise ConfigError(
                f"need 0 or more replicas at least and 1 or more at most, got {self.minimum} to "
                f"{self.maximum}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """State that a replica reports, when it is ready and whenever that changes."""

    replica_id: str
    """Id of one start: it is never used again, so that tickets for a dead one are void."""
    pool: str
    node: str
    room: AdmissionConfig
    """The configuration of its own admission."""
    chunk_s: Mapping[Geometry, float] = field(default_factory=dict)
    """Seconds a chunk that it counts on (`ChunkTimes.estimate`), by geometry; others are scaled from these.
    Empty: nothing is measured yet, and it takes one session at a time."""
    recorded: frozenset[Geometry] = frozenset()
    """Geometries whose graphs are recorded: a session of one of these starts sooner there."""
    version: str = ""
    misses: int = 0
    """Chunks that came late since it started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The session has this place, reserved until it leaves. Hand out a ticket for it."""

    session_id: str
    replica_id: str
    restore: bool = False
    """True if it comes back from its last kept state: its replica died, or it did not arrive where it was
    moved to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Save the session at `source`, restore it at `target`, report `moved` (or `move_failed`). Both places
    are held until then."""

    session_id: str
    source: str
    target: str
    why: MoveReason


@dataclass(frozen=True, kw_only=True, slots=True)
class StartReplica:
    """One more of a pool. Answer with `replica_ready`, or `start_failed`."""

    pool: str
    version: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StopReplica:
    """No session is on it and none will be: end it, and report `replica_gone`."""

    replica_id: str
    why: str


Answer = Place | Queued | Refused
Decision = Place | Move | StartReplica | StopReplica | Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolMetrics:
    """One pool as it is, and since the start. Money and stream-hours are for the operator."""

    ready: int
    starting: int
    draining: int
    wanted: int
    """Replicas that autoscaling aims at."""
    sessions: int
    waiting: int
    promised: float
    """Share that is promised of the room of all ready replicas, draining ones among them; 0 to 1."""
    replica_hours: float
    stream_hours: float
    dollars: float
    misses: int
    """Chunks that came late, those of replicas that are gone among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetMetrics:
    pools: Mapping[str, PoolMetrics]
    placed: int
    """Since the start, as all below."""
    refused: int
    moves: int
    deaths: int
    restored: int
    """Sessions that were given a new place after a death."""
    yielded: int
    """Restored sessions for whose rate there was no room."""
