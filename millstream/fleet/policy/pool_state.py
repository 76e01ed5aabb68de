"""One pool: how many replicas it has, how many it should have by what is promised, queued and coming, and
what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from millstream.fleet.policy.replica_capacity import ReplicaCapacity
from millstream.fleet.policy.types import Pool

GROWTH_S = 120.0
"""Over which the growth of the number of sessions is averaged."""
START_SMOOTHING = 0.7
"""Share of the past in how long a replica takes to start."""
LONGEST_BACKOFF = 9
"""Doublings of a second."""
MOST_SLOTS = 10_000


@dataclass(slots=True)
class PoolState:
    pool: Pool
    rooms: dict[str, ReplicaCapacity] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    """When each replica that is not ready yet was asked for."""
    start_s: float = 0.0
    slots: int = 1
    """Sessions that a replica takes, as they are on average."""
    growth: float = 0.0
    """Sessions a second, net."""
    surplus_since: float | None = None
    failures: int = 0
    """Starts in a row that came to nothing."""
    retry_at: float = -math.inf
    seconds: float = 0.0
    """Replica-seconds of replicas that are gone."""
    misses: int = 0
    """Late chunks of replicas that are gone."""
    _counted: tuple[float, int] | None = None

    def __post_init__(self) -> None:
        self.start_s = self.pool.start_s

    @property
    def staying(self) -> list[ReplicaCapacity]:
        return [room for room in self.rooms.values() if room.draining is None and not room.stopping]

    @property
    def draining(self) -> list[ReplicaCapacity]:
        return [room for room in self.rooms.values() if room.draining is not None]

    @property
    def total(self) -> int:
        """Replicas that are there to stay, or will be."""
        return len(self.staying) + len(self.starts)

    @property
    def may_grow(self) -> bool:
        return self.total < self.pool.maximum

    def wanted(self, sessions: int, waiting: int) -> int:
        """Replicas for those who are there and who wait or will have come before another can be started,
        beyond the line that may be, and the warm ones."""
        self._learn_slots()
        coming = max(0.0, self.growth) * self.start_s
        beyond = max(0.0, waiting + coming - self.pool.line)
        count = math.ceil((sessions + beyond) / self.slots - 1e-9)
        if waiting > self.pool.line:  # by the numbers there may be room, and they wait all the same
            count = max(count, len(self.staying) + math.ceil((waiting - self.pool.line) / self.slots))
        return min(max(count + self.pool.warm, self.pool.minimum), self.pool.maximum)

    def count(self, number: int, now: float) -> None:
        """How fast it grows, by sessions that are there or wait."""
        if self._counted is not None and now > self._counted[0]:
            past_s = now - self._counted[0]
            weight = 1 - math.exp(-past_s / GROWTH_S)
            self.growth += weight * ((number - self._counted[1]) / past_s - self.growth)
        self._counted = now, number

    def _learn_slots(self) -> None:
        """Estimate how many of the present sessions a replica takes, by its time or its memory, whichever
        holds fewer."""
        held = sum(len(room.held) for room in self.rooms.values())
        if not held:
            return
        room = next(iter(self.rooms.values()))
        share = sum(each.share for each in self.rooms.values()) / held
        size = sum(each.num_bytes for each in self.rooms.values()) / held
        by_time = math.inf if share <= 0 else room.config.share / share
        by_memory = math.inf if size <= 0 else room.config.memory_bytes / size
        self.slots = max(1, math.floor(min(by_time, by_memory, MOST_SLOTS) + 1e-9))

    def ready(self, room: ReplicaCapacity, now: float) -> None:
        if self.starts:
            room.started_at = self.starts.pop(0)
            self.start_s = START_SMOOTHING * self.start_s + (1 - START_SMOOTHING) * (now - room.started_at)
        self.failures = 0
        self.rooms[room.replica_id] = room

    def failed(self, now: float) -> None:
        if self.starts:
            self.seconds += now - self.starts.pop(0)
        self.retry_at = now + 2.0 ** min(LONGEST_BACKOFF, self.failures)
        self.failures += 1

    def gone(self, room: ReplicaCapacity, now: float) -> None:
        del self.rooms[room.replica_id]
        self.seconds += now - room.started_at
        self.misses += room.replica.misses

    def hours(self, now: float) -> float:
        """Return replica-hours, counted from the moment each replica was asked for."""
        running = [*self.starts, *(room.started_at for room in self.rooms.values())]
        return (self.seconds + sum(now - start for start in running)) / 3600
