"""A fleet on paper: the same policy that runs a real one, with people, machines and deaths that are only
events.

Sessions are simulated, chunks are not: a chunk is late where a session stood still longer than its lead (its
replica died, or its move took too long) and where a replica is slower than what it promised. Each stay
counts from its place. Given a recorded trace (`fleet/trace.py`) it replays what came in and is held against
what came of it. Knows no wall clock; the same input gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from millstream.core.event_queue import EventQueue
from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.types import (
    Decision,
    FleetMetrics,
    Move,
    Place,
    Replica,
    StartReplica,
    StopReplica,
)
from millstream.fleet.trace import Arrival, Times
from millstream.serving.admission_types import Queued, Refused, Request
from millstream.serving.chunk_times import Geometry


@dataclass(slots=True)
class FleetOutcome:
    """Outcome of a simulation."""

    metrics: FleetMetrics
    arrived: int
    gave_up: int
    """Sessions that left the line before they had a place."""
    waits_s: list[float]
    """Seconds from asking to the place, of every session that was placed."""
    misses: int
    chunks: float
    stalled_s: float
    most_sessions: int
    most_replicas: int
    timeline: list[tuple[float, int, int, int]]
    """Samples: seconds, sessions with a place, sessions in line, replicas."""

    @property
    def stream_hours(self) -> float:
        return sum(pool.stream_hours for pool in self.metrics.pools.values())

    @property
    def dollars(self) -> float:
        return sum(pool.dollars for pool in self.metrics.pools.values())

    @property
    def dollars_per_stream_hour(self) -> float:
        return self.dollars / self.stream_hours if self.stream_hours else 0.0

    @property
    def continuity(self) -> float:
        """Chunks that were there in time."""
        return 1 - self.misses / self.chunks if self.chunks else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Happening:
    """Something that happens to a replica by itself: it is killed, drained, slower by a factor from now on,
    or says which chunk times it counts on now."""

    at: float
    replica_id: str
    kind: Literal["kill", "drain", "slow", "measured"]
    factor: float = 1.0
    chunk_s: Mapping[Geometry, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Stream:
    arrival: Arrival
    placed_at: float | None = None
    lost_at: float | None = None

    def lead_s(self, now: float) -> float:
        """Return the seconds that its viewer has buffered: a chunk comes whenever one has been played, and
        then it has the whole lead."""
        assert self.placed_at is not None, "no viewer watches before it has a place"
        pace = self.arrival.asked.request.pace
        return pace.max_ahead_s - (now - self.placed_at) % pace.media_s


@dataclass(slots=True)
class World:
    """Events outside the policy's control: which replicas a start gives, and what happens to them."""

    start: Callable[[StartReplica, float], tuple[float, Replica]]
    """Time when a replica started now is ready, and that replica."""
    fate: Callable[[Replica, float], Iterable[Happening]] = lambda replica, now: ()
    """Events that await a replica which is ready now."""
    times: Times = field(default_factory=Times)
    sample_s: float = 300.0


class FleetSimulation:
    def __init__(
        self, policy: FleetPolicy, world: World, arrivals: Iterator[Arrival], *, seconds: float
    ) -> None:
        self.policy = policy
        self.world = world
        self.seconds = seconds
        self.times = world.times
        self._arrivals = arrivals
        self._events = EventQueue()
        self._streams: dict[str, _Stream] = {}
        self._replicas: dict[str, Replica] = {}
        """As they are, whatever they have said."""
        self._slow: set[str] = set()
        self._starting = 0
        self._placed = 0
        self.outcome = FleetOutcome(
            metrics=policy.metrics(0.0),
            arrived=0,
            gave_up=0,
            waits_s=[],
            misses=0,
            chunks=0.0,
            stalled_s=0.0,
            most_sessions=0,
            most_replicas=0,
            timeline=[],
        )

    def run(self) -> FleetOutcome:
        self._next_arrival()
        self._events.at(self.times.scale_every_s, self._scale)  # after those who are there from the start
        self._events.run(self.seconds)
        self.outcome.metrics = self.policy.metrics(self.seconds)
        return self.outcome

    def begin_with(self, replicas: Iterable[Replica]) -> None:
        """Ready before the first viewer comes."""
        for replica in replicas:
            self._enter(0.0, replica)

    def deploy(self, at: float, pool: str, version: str) -> None:
        """A new version is deployed then."""
        self._events.at(at, lambda now: self._follow(now, self.policy.deploy(pool, version, now)))

    # What happens

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._events.at(arrival.at, self._arrive, arrival)

    def _arrive(self, now: float, arrival: Arrival) -> None:
        self._next_arrival()
        self.outcome.arrived += 1
        answer = self.policy.ask(arrival.asked, now)
        if isinstance(answer, Refused):
            return
        session_id = arrival.asked.session_id
        self._streams[session_id] = _Stream(arrival)
        if isinstance(answer, Queued):
            patience_s = arrival.patience_s
            if patience_s is not None:
                self._events.at(now + patience_s, self._give_up, session_id)
        else:
            self._follow(now, [answer])

    def _give_up(self, now: float, session_id: str) -> None:
        stream = self._streams.get(session_id)
        if stream is not None and stream.placed_at is None:
            del self._streams[session_id]
            self.outcome.gave_up += 1
            self._follow(now, self.policy.on_session_left(session_id, now))

    def _leave(self, now: float, session_id: str) -> None:
        del self._streams[session_id]
        self._placed -= 1
        self._follow(now, self.policy.on_session_left(session_id, now))

    def _ready(self, now: float, replica: Replica) -> None:
        self._starting -= 1
        self._enter(now, replica)

    def _enter(self, now: float, replica: Replica) -> None:
        self._replicas[replica.replica_id] = replica
        self._count_replicas()
        for happening in self.world.fate(replica, now):
            self._events.at(max(now, happening.at), self._happen, happening)
        self._follow(now, self.policy.replica_ready(replica, now))

    def _happen(self, now: float, happening: Happening) -> None:
        replica = self._replicas.get(happening.replica_id)
        if replica is None:
            return
        if happening.kind == "kill":
            for session_id in self.policy.sessions_on(replica.replica_id):
                self._streams[session_id].lost_at = now
            self._forget(replica.replica_id)
            self._follow(now, self.policy.replica_gone(replica.replica_id, now))
        elif happening.kind == "drain":
            self._follow(now, self.policy.drain(replica.replica_id, now))
        elif happening.kind == "measured":
            changed = replace(replica, chunk_s=happening.chunk_s, recorded=frozenset(happening.chunk_s))
            self._replicas[replica.replica_id] = changed
            self._report(now, changed)
        else:
            self._slow_down(now, replica, happening.factor)

    def _slow_down(self, now: float, replica: Replica, factor: float) -> None:
        slower = {geometry: factor * seconds for geometry, seconds in replica.chunk_s.items()}
        self._replicas[replica.replica_id] = changed = replace(replica, chunk_s=slower)
        (self._slow.add if factor > 1 else self._slow.discard)(replica.replica_id)
        self._events.at(now + self.times.scale_every_s, self._report, changed)

    def _report(self, now: float, replica: Replica) -> None:
        """The policy hears of it a little later."""
        if self._replicas.get(replica.replica_id) is replica:
            self._follow(now, self.policy.replica_changed(replica, now))

    def _moved(self, now: float, move: Move) -> None:
        decisions = self.policy.moved(move.session_id, now, target=move.target)
        if self.policy.place_of(move.session_id) == move.target:
            self._stall(self.times.move_gap_s)
        self._follow(now, decisions)

    def _scale(self, now: float) -> None:
        every_s = self.times.scale_every_s
        self._events.at(now + every_s, self._scale)
        self.outcome.misses += round(every_s * sum(map(self._late_chunks, self._slow)))
        self._follow(now, self.policy.scale(now))
        timeline = self.outcome.timeline
        if not timeline or now - timeline[-1][0] >= self.world.sample_s:
            timeline.append(
                (now, self._placed, len(self._streams) - self._placed, len(self._replicas) + self._starting)
            )

    # What is to be done

    def _follow(self, now: float, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Place):
                self._place(now, decision)
            elif isinstance(decision, Move):
                self._events.at(now + self.times.move_s, self._moved, decision)
            elif isinstance(decision, StartReplica):
                self._starting += 1
                ready_at, replica = self.world.start(decision, now)
                self._events.at(ready_at, self._ready, replica)
                self._count_replicas()
            elif isinstance(decision, StopReplica):
                self._forget(decision.replica_id)
                self._follow(now, self.policy.replica_gone(decision.replica_id, now))
            else:
                self._streams.pop(decision.session_id, None)

    def _count_replicas(self) -> None:
        self.outcome.most_replicas = max(self.outcome.most_replicas, len(self._replicas) + self._starting)

    def _place(self, now: float, place: Place) -> None:
        stream = self._streams[place.session_id]
        if place.restore:
            assert stream.lost_at is not None, f"{place.session_id} comes back and was not lost"
            lost_at = stream.lost_at
            stream.lost_at = None
            self._stall(now - lost_at + self.times.restore_s - stream.lead_s(lost_at))
            return
        if stream.placed_at is not None:
            return
        stream.placed_at = now
        self._placed += 1
        self.outcome.most_sessions = max(self.outcome.most_sessions, self._placed)
        arrival = stream.arrival
        self.outcome.waits_s.append(now - arrival.at)
        self.outcome.chunks += min(arrival.stay_s, self.seconds - now) / arrival.asked.request.pace.media_s
        self._events.at(now + arrival.stay_s, self._leave, place.session_id)

    def _stall(self, seconds: float) -> None:
        """Beyond what the viewer had: one chunk comes late, however late."""
        if seconds > 0:
            self.outcome.misses += 1
            self.outcome.stalled_s += seconds

    def _late_chunks(self, replica_id: str) -> float:
        """A second, while a replica is too slow for those who are on it: all of theirs."""
        replica = self._replicas.get(replica_id)
        streams = (
            [self._streams[name].arrival.asked.request for name in self.policy.sessions_on(replica_id)]
            if replica
            else []
        )
        if replica is None or sum(_share(request, replica) for request in streams) <= 1:
            return 0.0
        return sum(1 / request.pace.media_s for request in streams)

    def _forget(self, replica_id: str) -> None:
        del self._replicas[replica_id]
        self._slow.discard(replica_id)


def _share(request: Request, replica: Replica) -> float:
    return replica.chunk_s.get(request.geometry, 0.0) / request.pace.media_s
