"""A recorded fleet on paper: the same people, replicas and kills through the same policy, and how near its
numbers come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.core.errors import TraceError
from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.types import Replica, StartReplica
from millstream.fleet.simulator import FleetOutcome, FleetSimulation, Happening, World
from millstream.fleet.trace import FleetTrace, ReplicaLife

AT_ONCE_S = 1.0
"""Replicas that were ready by then were there from the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    what: str
    simulated: float
    recorded: float

    @property
    def off(self) -> float:
        """As a share of what was recorded; of nothing, all there is."""
        return (
            abs(self.simulated - self.recorded) / self.recorded
            if self.recorded
            else float(self.simulated != 0)
        )


def simulate_trace(trace: FleetTrace) -> FleetOutcome:
    policy = FleetPolicy(trace.pools, placement=trace.placement, max_waiting=trace.max_waiting)
    lives = _Lives(trace)
    arrivals = iter(sorted(trace.arrivals, key=lambda arrival: arrival.at))
    simulation = FleetSimulation(
        policy, World(start=lives.start, fate=lives.fate, times=trace.times), arrivals, seconds=trace.seconds
    )
    for deployed in trace.deploys:
        simulation.deploy(deployed.at, deployed.pool, deployed.version)
    simulation.begin_with(lives.first())
    return simulation.run()


def compared(trace: FleetTrace, outcome: FleetOutcome) -> list[Compared]:
    seen = trace.seen
    metrics = outcome.metrics
    pairs: dict[str, tuple[float, float]] = {
        "placed": (metrics.placed, seen.placed),
        "refused": (metrics.refused, seen.refused),
        "waited, all together, s": (sum(outcome.waits_s), sum(seen.waits_s)),
        "moves": (metrics.moves, seen.moves),
        "restored": (metrics.restored, seen.restored),
        "chunks late": (outcome.misses, seen.misses),
    }
    return [
        Compared(what=what, simulated=simulated, recorded=recorded)
        for what, (simulated, recorded) in pairs.items()
    ]


class _Lives:
    """Replicas as they were recorded, in the order in which they were ready."""

    def __init__(self, trace: FleetTrace) -> None:
        self._left = sorted(trace.replicas, key=lambda life: life.ready_at)
        self._known = {life.pool: life for life in reversed(self._left)}
        """Something to go by where the simulation starts one more than there were."""
        for pool in trace.pools:
            if pool.name not in self._known:
                raise TraceError(f"the trace has no replica of {pool.name}: record one that is ready")
        self._kills = {
            life.replica_id: life.killed_at for life in trace.replicas if life.killed_at is not None
        }
        self._drains = trace.drains
        self._measured = trace.measured
        self._start_s = trace.times.start_s
        self._extra = 0

    def first(self) -> list[Replica]:
        return [self._pop(life) for life in tuple(self._left) if life.ready_at <= AT_ONCE_S]

    def start(self, order: StartReplica, now: float) -> tuple[float, Replica]:
        """The next that there was, ready when it was; one more than there were takes the mean."""
        for life in self._left:
            if life.pool == order.pool:
                return max(now, life.ready_at), self._pop(life)
        self._extra += 1
        return now + self._start_s, _replica(self._known[order.pool], f"extra{self._extra}", order.version)

    def fate(self, replica: Replica, now: float) -> Iterator[Happening]:
        killed_at = self._kills.get(replica.replica_id)
        if killed_at is not None:
            yield Happening(at=killed_at, replica_id=replica.replica_id, kind="kill")
        for drained in self._drains:
            if drained.replica_id == replica.replica_id:
                yield Happening(at=drained.at, replica_id=replica.replica_id, kind="drain")
        for each in self._measured:
            if each.replica_id == replica.replica_id:
                yield Happening(
                    at=each.at, replica_id=each.replica_id, kind="measured", chunk_s=dict(each.chunk_s)
                )

    def _pop(self, life: ReplicaLife) -> Replica:
        self._left.remove(life)
        return _replica(life, life.replica_id, life.version)


def _replica(life: ReplicaLife, name: str, version: str) -> Replica:
    measured = dict(life.chunk_s)
    return Replica(
        replica_id=name,
        pool=life.pool,
        node=life.node,
        room=life.room,
        chunk_s=measured,
        recorded=frozenset(measured),
        version=version,
    )
