"""Trace of a real fleet, as a file: what came in, what it went by, and what came of it.

The simulator (`fleet/simulator.py`) is given the first two and is held against the third. JSON; times are
seconds since the recording began.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from millstream.core.errors import TraceError
from millstream.core.files import write_whole
from millstream.fleet.policy.types import FleetRequest, Placement, Pool
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.chunk_times import Geometry


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    asked: FleetRequest
    stay_s: float
    """From its place to its end, the picture standing still among it; of one that never had a place, the
    others' mean."""
    patience_s: float | None = None
    """For how long it would wait in line; None: as long as it takes. Of a recording: how long it did, if it
    gave up."""


class ReplicaLife(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a replica."""

    replica_id: str
    pool: str
    node: str
    version: str = ""
    room: AdmissionConfig
    ready_at: float
    killed_at: float | None = None
    """When it was noticed dead, if it was killed; replicas that the policy stopped have none."""
    chunk_s: list[tuple[Geometry, float]] = []
    """Chunk times that it counted on when it was ready, by geometry; empty where nothing was measured yet."""


class NewChunkTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A replica counts on other chunk times from now on."""

    at: float
    replica_id: str
    chunk_s: list[tuple[Geometry, float]]


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """A drain that was asked for; drains that the policy decided on are not in here."""

    at: float
    replica_id: str


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    pool: str
    version: str


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Means of what the fleet took for what the policy decided."""

    move_s: float = 1.0
    """From `Move` to `moved`."""
    move_gap_s: float = 0.0
    """Seconds of a move in which the viewer saw nothing new, beyond the buffered lead."""
    restore_s: float = 5.0
    """From the new place of a session whose replica died to its next picture."""
    start_s: float = 60.0
    """From `StartReplica` to ready."""
    scale_every_s: float = 5.0
    """How often the policy's `scale` is called."""


class FleetSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Observed outcome of the recording."""

    placed: int = 0
    refused: int = 0
    waits_s: list[float] = []
    """Seconds from asking to the place, of every session that was placed; 0 for one that did not wait."""
    moves: int = 0
    restored: int = 0
    misses: int = 0
    """Chunks that came late, as viewers count them: one for a gap, however long."""
    stalled_s: float = 0.0


class FleetTrace(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    """How long it was recorded."""
    pools: list[Pool]
    placement: Placement = "pack"
    max_waiting: int = 256
    arrivals: list[Arrival]
    replicas: list[ReplicaLife]
    drains: list[Drained] = []
    deploys: list[Deployed] = []
    measured: list[NewChunkTimes] = []
    times: Times
    seen: FleetSeen


def write_trace(trace: FleetTrace, path: Path) -> None:
    write_whole(path, msgspec.json.format(msgspec.json.encode(trace), indent=1).decode() + "\n")


def read_trace(path: Path) -> FleetTrace:
    try:
        return msgspec.json.decode(path.read_bytes(), type=FleetTrace)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path} is not a fleet's trace: {error}") from None
