"""A simulated day of a fleet: more sessions in the evening than at night, machines that die or slow down now
and then."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.core.errors import ConfigError
from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.types import FleetRequest, Placement, Pool, Replica, StartReplica
from millstream.fleet.simulator import FleetOutcome, FleetSimulation, Happening, World
from millstream.fleet.trace import Arrival, Times
from millstream.serving.admission_types import AdmissionConfig, Request
from millstream.serving.capacity_check import CapacityCheck
from millstream.serving.chunk_times import ChunkTimes, Geometry

DAY_S = 86_400.0
MOST_SLOTS = 1024
"""Sessions of a replica that are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    sessions: int = 1000
    """At the same time at the peak, if all could be placed."""
    night: float = 0.3
    """At the other end of the day, as a share of that."""
    peak_hour: float = 20.0
    stay_s: float = 1800.0
    """Mean; stays are exponential, and so is patience."""
    patience_s: float = 120.0
    seconds: float = DAY_S
    hours_between_deaths: float | None = 720.0
    """Mean hours between deaths of one replica; None for never. A node has the same mean."""
    replicas_per_node: int = 8
    hours_between_slow: float | None = 240.0
    """Mean hours between slow spells of one replica: in one it is slower by `slower` for ten minutes. None
    for never."""
    slower: float = 1.3
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.sessions <= 1_000_000 or not 0 <= self.night <= 1:
            raise ConfigError(
                f"need 1 to a million sessions and a share of 0 to 1 at night, got {self.sessions} and "
                f"{self.night}"
            )
        if not (0 < self.stay_s <= 1e6 and 0 < self.patience_s <= 1e6 and 0 < self.seconds <= 31 * DAY_S):
            raise ConfigError(
                "stay, patience and length of a simulation must be above 0, the length at most 31 days"
            )
        for hours in (self.hours_between_deaths, self.hours_between_slow):
            if hours is not None and not hours > 0:
                raise ConfigError(f"hours between failures must be above 0, got {hours}")

    def expected(self, now: float) -> float:
        """Sessions that there would be if all could be placed."""
        phase = math.cos(2 * math.pi * (now / DAY_S - self.peak_hour / 24))
        return self.sessions * (self.night + (1 - self.night) * (1 + phase) / 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolKind:
    """Replicas of one pool, and the requests of its sessions."""

    pool: Pool
    room: AdmissionConfig
    request: Request
    chunk_s: float
    share: float = 1.0
    """Share of all sessions that come."""

    @property
    def slots(self) -> int:
        return slots_of(self.room, self.request, self.chunk_s)


def slots_of(room: AdmissionConfig, request: Request, chunk_s: float) -> int:
    """Sessions like this one that a server's own admission lets onto one replica, once chunks were measured
    to take so long."""
    times = ChunkTimes(clock=lambda: 0.0)
    times.add(request.geometry, chunk_s)
    check = CapacityCheck(room, times)
    crowd = [replace(request, session_id=str(number)) for number in range(MOST_SLOTS)]
    return bisect_left(
        range(MOST_SLOTS), True, key=lambda number: not check.fits(crowd[number], crowd[:number])
    )


def simulate(
    kinds: Sequence[PoolKind],
    day: Day,
    *,
    times: Times,
    placement: Placement = "pack",
    max_waiting: int = 256,
) -> FleetOutcome:
    """The day, from midnight, with as many replicas as the first hour needs."""
    for kind in kinds:
        if not kind.slots:
            raise ConfigError(f"replicas.{kind.pool.name}: not one session fits on a replica")
    policy = FleetPolicy([kind.pool for kind in kinds], placement=placement, max_waiting=max_waiting)
    machines = _Machines({kind.pool.name: kind for kind in kinds}, day, times.start_s)
    simulation = FleetSimulation(
        policy,
        World(start=machines.start, fate=machines.fate, times=times),
        _arrivals(kinds, day),
        seconds=day.seconds,
    )
    simulation.begin_with(
        machines.make(kind.pool.name, kind.pool.version) for kind in kinds for _ in range(_first(kind, day))
    )
    return simulation.run()


def _first(kind: PoolKind, day: Day) -> int:
    need = math.ceil(kind.share * day.expected(0.0) / kind.slots) + kind.pool.warm
    return min(max(need, kind.pool.minimum), kind.pool.maximum)


def _arrivals(kinds: Sequence[PoolKind], day: Day) -> Iterator[Arrival]:
    """Yield the sessions that are there at midnight, then others as a Poisson process whose rate follows the
    day."""
    chance = random.Random(day.seed)
    weights = [kind.share for kind in kinds]
    for number in range(round(day.expected(0.0))):
        yield _arrival(0.0, f"first{number}", chance, kinds, weights, day)
    now = 0.0
    most = day.sessions / day.stay_s
    number = 0
    while True:
        now += chance.expovariate(most)
        if now > day.seconds:
            return
        if chance.random() * day.sessions <= day.expected(now):
            number += 1
            yield _arrival(now, f"s{number}", chance, kinds, weights, day)


def _arrival(
    now: float,
    name: str,
    chance: random.Random,
    kinds: Sequence[PoolKind],
    weights: Sequence[float],
    day: Day,
) -> Arrival:
    kind = kinds[0] if len(kinds) == 1 else chance.choices(kinds, weights)[0]
    return Arrival(
        at=now,
        asked=FleetRequest(request=replace(kind.request, session_id=name)),
        stay_s=chance.expovariate(1 / day.stay_s),
        patience_s=chance.expovariate(1 / day.patience_s),
    )


class _Machines:
    """Replicas as they are started, and what becomes of them."""

    def __init__(self, kinds: Mapping[str, PoolKind], day: Day, start_s: float) -> None:
        self.kinds = kinds
        self.day = day
        self.start_s = start_s
        self._chance = random.Random(day.seed + 1)
        self._number = 0
        self._node_ends: dict[str, float] = {}

    def start(self, order: StartReplica, now: float) -> tuple[float, Replica]:
        return now + self.start_s, self.make(order.pool, order.version)

    def make(self, pool: str, version: str) -> Replica:
        kind = self.kinds[pool]
        geometry: Geometry = kind.request.geometry
        self._number += 1
        return Replica(
            replica_id=f"r{self._number:05}",
            pool=pool,
            node=f"node{(self._number - 1) // self.day.replicas_per_node}",
            room=kind.room,
            chunk_s={geometry: kind.chunk_s},
            recorded=frozenset({geometry}),
            version=version,
        )

    def fate(self, replica: Replica, now: float) -> Iterator[Happening]:
        name = replica.replica_id
        day = self.day
        if day.hours_between_deaths is not None:
            own = now + self._in(day.hours_between_deaths)
            node = self._node_ends.get(replica.node, -math.inf)
            if node <= now:
                node = self._node_ends[replica.node] = now + self._in(day.hours_between_deaths)
            yield Happening(at=min(own, node), replica_id=name, kind="kill")
        if day.hours_between_slow is not None:
            slow = now + self._in(day.hours_between_slow)
            yield Happening(at=slow, replica_id=name, kind="slow", factor=day.slower)
            yield Happening(at=slow + 600, replica_id=name, kind="slow", factor=1 / day.slower)

    def _in(self, hours: float) -> float:
        return self._chance.expovariate(1 / (3600 * hours))
