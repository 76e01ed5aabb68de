"""Simulate a plan event by event: people arrive, are admitted, watch and leave; replicas compute, queue and
fail.

A replica is a row of stages (the mesh's, then the front's), each taking the waiting chunk that is due first.
A session has one chunk on the mesh at a time, runs at most `lead` chunks ahead of its viewer, and stalls when
a chunk is late: its clock then waits for it. A dead replica's sessions go on where they were once it is back.
How many sessions a replica admits is given by the caller, who asks the server's own admission. Knows no torch
and no wall clock; the same seed gives the same run. Bounded: the line by `max_waiting` (one more is turned
away), samples by `MAX_SAMPLES` (later ones are counted, not kept), chunks by `MAX_CHUNKS` (the run ends there
and says so).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.core.errors import ConfigError
from millstream.core.event_queue import EventQueue
from millstream.planner.judge import Plan

MAX_SAMPLES = 200_000
MAX_CHUNKS = 5_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    arrivals_per_minute: float
    stay_s: float = 300.0
    """Mean; stays are exponential."""
    seconds: float = 600.0
    spread: float = 0.03
    """Standard deviation of a stage's time over its mean."""
    lead: int = 2
    max_waiting: int = 16
    hours_between_failures: float | None = None
    """Mean hours between failures of one replica; None for never."""
    recovery_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.arrivals_per_minute <= 1e6 and 0 < self.stay_s <= 1e6 and 0 < self.seconds <= 1e6):
            raise ConfigError(
                "arrivals, stay and length of a simulation must be above 0 and at most a million"
            )
        if not 0 <= self.spread < 1 or self.lead < 1 or self.max_waiting < 0:
            raise ConfigError("need a spread of 0 to 1, a lead of 1 or more and room for 0 or more in line")
        if self.hours_between_failures is not None and not self.hours_between_failures > 0:
            raise ConfigError(f"hours between failures must be above 0, got {self.hours_between_failures}")


@dataclass(slots=True)
class Outcome:
    """Outcome of a simulation. Samples are milliseconds."""

    arrived: int = 0
    admitted: int = 0
    turned_away: int = 0
    chunks: int = 0
    late: int = 0
    failures: int = 0
    busy_share: float = 0.0
    """Share of the time that the busiest stage works, over all replicas."""
    most_sessions: int = 0
    mean_sessions: float = 0.0
    in_line: int = 0
    """Arrivals still in line when the simulation ended."""
    complete: bool = True
    intervals_ms: list[float] = field(default_factory=list)
    first_frame_ms: list[float] = field(default_factory=list)
    """From arrival, the wait in line among it."""

    @property
    def continuity(self) -> float:
        """Chunks that were there in time."""
        return 1 - self.late / self.chunks if self.chunks else 1.0


def quantile(samples: Sequence[float], share: float) -> float:
    assert 0 <= share <= 1, f"a share is 0 to 1, got {share}"
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True, eq=False)
class _Session:
    arrived: float
    stay: float
    replica: _Replica | None = None
    seated: float = 0.0
    leaves: float = 0.0
    due: float = float("inf")
    """When its viewer runs dry."""
    last: float | None = None


@dataclass(slots=True, eq=False)
class _Replica:
    waiting: list[list[tuple[float, int, _Session]]]
    """By stage: due first."""
    busy: list[bool]
    sessions: set[_Session] = field(default_factory=set)
    lives: int = 0
    """Counts failures: what an earlier life began is void."""
    up: bool = True


class Simulation:
    def __init__(self, plan: Plan, scenario: Scenario, *, slots: int | None = None) -> None:
        """`slots` are the sessions that a replica admits; as many as the plan says if not given."""
        self.plan = plan
        self.scenario = scenario
        self.slots = plan.sessions_per_replica if slots is None else slots
        assert self.slots > 0, f"{plan.layout} carries no session, nothing to simulate"
        self.period_s = plan.ask.work.deadline_ms / 1e3
        self.stages = stage_seconds(plan)
        self.first_share = plan.time.first_frame_ms / 1e3 / sum(self.stages)
        """Share of a chunk's time that a session's first chunk takes; it attends to itself alone."""
        self.mesh_stages = len(self.stages) - (1 if plan.layout.front_apart else 0)
        self.random = random.Random(scenario.seed)
        self.outcome = Outcome()
        self.line: deque[_Session] = deque()
        count = len(self.stages)
        self.replicas = [
            _Replica(waiting=[[] for _ in range(count)], busy=[False] * count) for _ in range(plan.replicas)
        ]
        self._events = EventQueue()
        self._queued = 0
        """Chunks that waited for a stage so far: of those due at once the first goes first."""
        self._worked = [0.0] * count
        self._watched_s = 0.0
        """By all, until now."""

    def run(self) -> Outcome:
        self._events.at(self.random.expovariate(self.scenario.arrivals_per_minute / 60), self._arrive)
        for replica in self.replicas if self.scenario.hours_between_failures is not None else ():
            self._events.at(self._until_failure(), self._fail, replica)
        self._events.run(self.scenario.seconds, lambda: self.outcome.chunks < MAX_CHUNKS)
        self.outcome.complete = self.outcome.chunks < MAX_CHUNKS
        seen = self.outcome.admitted + self.outcome.turned_away + len(self.line)
        assert seen == self.outcome.arrived, f"{self.outcome.arrived} people arrived, {seen} were seen to"
        self.outcome.in_line = len(self.line)
        watching = sum(
            self.scenario.seconds - each.seated for replica in self.replicas for each in replica.sessions
        )
        self.outcome.mean_sessions = (self._watched_s + watching) / self.scenario.seconds
        self.outcome.busy_share = max(self._worked) / self.scenario.seconds / len(self.replicas)
        return self.outcome

    def _arrive(self, now: float) -> None:
        self._events.at(now + self.random.expovariate(self.scenario.arrivals_per_minute / 60), self._arrive)
        self.outcome.arrived += 1
        session = _Session(arrived=now, stay=self.random.expovariate(1 / self.scenario.stay_s))
        if not self._seat(now, session):
            if len(self.line) < self.scenario.max_waiting:
                self.line.append(session)
            else:
                self.outcome.turned_away += 1

    def _seat(self, now: float, session: _Session) -> bool:
        """At the emptiest replica that keeps its promise to all."""
        live = [replica for replica in self.replicas if replica.up]
        replica = min(live, key=lambda r: len(r.sessions), default=None)
        if replica is None or len(replica.sessions) >= self.slots:
            return False
        replica.sessions.add(session)
        session.replica = replica
        session.seated = now
        session.leaves = now + session.stay
        self.outcome.admitted += 1
        self.outcome.most_sessions = max(
            self.outcome.most_sessions, sum(len(r.sessions) for r in self.replicas)
        )
        self._release(now, replica, replica.lives, session)
        return True

    def _release(self, now: float, replica: _Replica, life: int, session: _Session) -> None:
        """A session's next chunk may begin."""
        if life != replica.lives or session not in replica.sessions:
            return
        self._queue(now, replica, session, stage=0, due=session.due)

    def _queue(self, now: float, replica: _Replica, session: _Session, *, stage: int, due: float) -> None:
        self._queued += 1
        heapq.heappush(replica.waiting[stage], (due, self._queued, session))
        self._start(now, replica, stage)

    def _start(self, now: float, replica: _Replica, stage: int) -> None:
        if replica.busy[stage] or not replica.waiting[stage] or not replica.up:
            return
        due, _, session = heapq.heappop(replica.waiting[stage])
        replica.busy[stage] = True
        share = 1.0 if session.last is not None else self.first_share
        taken = share * self.stages[stage] * max(0.1, self.random.gauss(1.0, self.scenario.spread))
        self._worked[stage] += taken
        self._events.at(now + taken, self._done, replica, replica.lives, session, stage, due)

    def _done(
        self, now: float, replica: _Replica, life: int, session: _Session, stage: int, due: float
    ) -> None:
        if life != replica.lives:
            return
        replica.busy[stage] = False
        if stage + 1 < len(self.stages):
            self._queue(now, replica, session, stage=stage + 1, due=due)
        else:
            self._shown(now, session)
        if stage + 1 == self.mesh_stages:
            self._after_mesh(now, replica, session)
        self._start(now, replica, stage)

    def _after_mesh(self, now: float, replica: _Replica, session: _Session) -> None:
        """Leave, or begin the next chunk: at once, but no further ahead of the viewer than the lead."""
        if now >= session.leaves:
            replica.sessions.discard(session)
            self._watched_s += now - session.seated
            while self.line and self._seat(now, self.line[0]):
                self.line.popleft()
            return
        following = session.due + self.period_s if self.mesh_stages < len(self.stages) else session.due
        earliest = following - self.scenario.lead * self.period_s if following < float("inf") else now
        self._events.at(max(now, earliest), self._release, replica, replica.lives, session)

    def _shown(self, now: float, session: _Session) -> None:
        self.outcome.chunks += 1
        if session.last is None:
            _keep(self.outcome.first_frame_ms, 1e3 * (now - session.arrived))
            session.due = now
        else:
            _keep(self.outcome.intervals_ms, 1e3 * (now - session.last))
            self.outcome.late += now > session.due + 1e-9
        session.last = now
        session.due = max(session.due, now) + self.period_s

    def _fail(self, now: float, replica: _Replica) -> None:
        self.outcome.failures += 1
        replica.up = False
        replica.lives = replica.lives + 1
        replica.busy = [False] * len(self.stages)
        replica.waiting = [[] for _ in self.stages]
        self._events.at(now + self.scenario.recovery_s, self._back, replica)

    def _back(self, now: float, replica: _Replica) -> None:
        replica.up = True
        for session in sorted(replica.sessions, key=lambda s: s.due):
            self._release(now, replica, replica.lives, session)
        self._events.at(now + self._until_failure(), self._fail, replica)

    def _until_failure(self) -> float:
        assert self.scenario.hours_between_failures is not None
        return self.random.expovariate(1 / (3600 * self.scenario.hours_between_failures))


def stage_seconds(plan: Plan) -> list[float]:
    """Return the seconds a chunk takes at each stage: the mesh's, then the front's where it is apart."""
    time = plan.time
    layout = plan.layout
    if layout.front_apart:
        front_ms = max(time.front_ms + time.transport_ms, time.host_pace_ms)
        return [time.mesh_ms / layout.pp / 1e3] * layout.pp + [front_ms / 1e3]
    return [max(time.mesh_ms + time.front_ms, time.host_pace_ms) / layout.pp / 1e3] * layout.pp


def _keep(samples: list[float], value: float) -> None:
    if len(samples) < MAX_SAMPLES:
        samples.append(value)
