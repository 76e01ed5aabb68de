"""Fleets of a few replicas on paper, and people who ask for a place in them."""

from __future__ import annotations

from typing import Any

from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.types import Decision, FleetRequest, Pool, Replica
from millstream.serving.admission_types import AdmissionConfig, Request
from millstream.serving.chunk_times import Geometry
from millstream.session.pacing import Pace

MEMORY = 8
SHARE = 0.9
QUOTA = 3
MAX_WAITING = 5
PACES = (
    Pace(fps=16, chunk_frames=12),
    Pace(fps=12, chunk_frames=12),
    Pace(fps=16, chunk_frames=12, lead_s=3.0),
)
SMALL, LARGE = (Geometry(model="brook", tokens=n, calls=5, window=12, flops=1e6 * n) for n in (1000, 3000))
OTHER = Geometry(model="wan", tokens=1000, calls=5, window=12, flops=1e9)


def a_request(name: str, geometry: Geometry = SMALL, *, key: str = "", **changes: Any) -> FleetRequest:
    fields: dict[str, Any] = dict(session_id=name, geometry=geometry, pace=PACES[0], memory_bytes=1)
    return FleetRequest(request=Request(**(fields | changes)), key=key)


def a_replica(name: str, pool: str = "brook", *, seconds: float = 0.3, **changes: Any) -> Replica:
    """With 0.3 s a small chunk of 0.75 s, a session takes 0.4 of it: two fit."""
    chunk_s = {SMALL: seconds, LARGE: 2 * seconds} if pool != "wan" else {OTHER: seconds}
    fields: dict[str, Any] = dict(
        replica_id=name, pool=pool, node="a", room=AdmissionConfig(memory_bytes=MEMORY, share=SHARE)
    )
    return Replica(**(fields | dict(chunk_s=chunk_s) | changes))


def a_fleet(
    replicas: int = 2, *, seconds: float = 0.3, pool: dict[str, Any] | None = None, **changes: Any
) -> FleetPolicy:
    """Two sessions fit on a replica."""
    fields: dict[str, Any] = dict(name="brook", model="brook", minimum=0, maximum=8)
    policy = FleetPolicy([Pool(**(fields | (pool or {})))], **changes)
    for number in range(replicas):
        policy.replica_ready(a_replica(f"r{number}", seconds=seconds), 0.0)
    return policy


def places(policy: FleetPolicy, *names: str, now: float = 0.0, **changes: Any) -> list[str | None]:
    for name in names:
        policy.ask(a_request(name, **changes), now)
    return [policy.place_of(name) for name in names]


def of_kind(decisions: list[Decision], kind: type) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]
