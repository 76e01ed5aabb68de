"""Records of a running fleet: the last events, for display, and on request a trace (`fleet/trace.py`), to
check the simulator against."""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from millstream.core import tracing
from millstream.fleet.config import FleetConfig
from millstream.fleet.link import Report
from millstream.fleet.policy.types import Answer, Decision, FleetRequest, Place
from millstream.fleet.trace import (
    Arrival,
    Deployed,
    Drained,
    FleetSeen,
    FleetTrace,
    NewChunkTimes,
    ReplicaLife,
    Times,
)
from millstream.serving.admission_types import Refused
from millstream.serving.chunk_times import Geometry

log = logging.getLogger(__name__)

MAX_ARRIVALS = 100_000
MAX_EVENTS = 500
EventKind = Literal[
    "ready", "death", "move", "move failed", "restored", "lost", "start", "start failed", "stop", "drain"
]
LABEL = 8
"""Letters of a session's id in logs: too few to steer it with."""


@dataclass(frozen=True, slots=True)
class FleetEvent:
    at: float
    """Seconds since 1970."""
    kind: EventKind
    replica_id: str
    """Or the pool, where there is no replica yet."""
    words: str
    seconds: float | None = None
    """How long it took, where that is known."""


@dataclass(slots=True)
class _Visit:
    asked: FleetRequest
    at: float
    placed_at: float | None = None
    ended_at: float | None = None
    was_refused: bool = False


@dataclass(eq=False, slots=True)
class FleetRecorder:
    config: FleetConfig
    started_at: float
    """All times are those of the policy's clock."""
    scale_every_s: float
    _visits: dict[str, _Visit] = field(default_factory=dict)
    _lives: dict[str, ReplicaLife] = field(default_factory=dict)
    _chunk_s: dict[str, list[tuple[Geometry, float]]] = field(default_factory=dict)
    """Chunk times that each replica counts on now."""
    _killed: dict[str, float] = field(default_factory=dict)
    _drains: list[Drained] = field(default_factory=list)
    _deploys: list[Deployed] = field(default_factory=list)
    _measured: list[NewChunkTimes] = field(default_factory=list)
    _misses: dict[str, int] = field(default_factory=dict)
    _before: dict[str, int] = field(default_factory=dict)
    """Late chunks that a replica had when the recording began."""
    _moves: list[float] = field(default_factory=list)
    _num_restored: int = 0
    _restored: list[float] = field(default_factory=list)
    _chunks: dict[str, int] = field(default_factory=dict)
    """Last chunk of each session that a replica reported."""
    _coming_back: dict[str, float] = field(default_factory=dict)
    """Sessions whose replica died, and since when they have a new place."""

    def asked(self, asked: FleetRequest, now: float) -> None:
        if len(self._visits) < MAX_ARRIVALS:
            self._visits[asked.session_id] = _Visit(asked, now)

    def decided(self, decisions: Iterable[Decision | Answer], now: float) -> None:
        for decision in decisions:
            if isinstance(decision, Place) and decision.restore:
                self._coming_back[decision.session_id] = now
            if isinstance(decision, (Place, Refused)) and decision.session_id in self._visits:
                visit = self._visits[decision.session_id]
                if isinstance(decision, Refused):
                    visit.was_refused = True
                elif visit.placed_at is None:
                    visit.placed_at = now

    def session_left(self, session_id: str, now: float) -> None:
        if session_id in self._visits:
            self._visits[session_id].ended_at = now

    def ready(self, replica_id: str, report: Report, now: float) -> None:
        """Also of every later report: what it counts on comes to be known, and which chunks there are."""
        life = self._lives.get(replica_id)
        if life is None:
            self._before[replica_id] = report.misses if now - self.started_at < 1 else 0
            life = ReplicaLife(
                replica_id=replica_id,
                pool=report.pool,
                node=report.node,
                version=report.version,
                room=report.room,
                ready_at=now - self.started_at,
                chunk_s=report.chunk_s,
            )
            self._lives[replica_id] = life
            self._chunk_s[replica_id] = report.chunk_s
        self._misses[replica_id] = report.misses
        if report.chunk_s != self._chunk_s[replica_id] and len(self._measured) < MAX_ARRIVALS:
            self._chunk_s[replica_id] = report.chunk_s
            self._measured.append(
                NewChunkTimes(at=now - self.started_at, replica_id=replica_id, chunk_s=report.chunk_s)
            )
        for session in report.sessions:
            self._made(session.asked.session_id, session.chunk, now)

    def _made(self, session_id: str, chunk: int, now: float) -> None:
        """Note the session's last chunk. Chunks that are made again after a death do not count."""
        if chunk > self._chunks.get(session_id, -1):
            self._chunks[session_id] = chunk
            if session_id in self._coming_back:
                self._restored.append(now - self._coming_back.pop(session_id))

    def killed(self, replica_id: str, now: float) -> None:
        self._killed[replica_id] = now - self.started_at

    def drained(self, replica_id: str, now: float) -> None:
        self._drains.append(Drained(at=now - self.started_at, replica_id=replica_id))

    def deployed(self, pool: str, version: str, now: float) -> None:
        self._deploys.append(Deployed(at=now - self.started_at, pool=pool, version=version))

    def happened(self, event: FleetEvent) -> None:
        if event.seconds is not None and event.kind == "move":
            self._moves.append(event.seconds)
        self._num_restored += event.kind == "restored"

    def trace(self, now: float) -> FleetTrace:
        visits = list(self._visits.values())
        placed = [visit for visit in visits if visit.placed_at is not None]
        table = self.config.table
        starts = [life.ready_at for life in self._lives.values()]
        return FleetTrace(
            seconds=now - self.started_at,
            pools=list(self.config.pools),
            placement=table.placement,
            max_waiting=table.max_waiting,
            arrivals=[self._arrival(visit, now, placed) for visit in visits],
            replicas=[_with_death(life, self._killed.get(name)) for name, life in self._lives.items()],
            drains=self._drains,
            deploys=self._deploys,
            measured=self._measured,
            times=Times(
                move_s=_mean(self._moves, 1.0),
                restore_s=_mean(self._restored, 5.0),
                start_s=_mean([start for start in starts if start > 1], 60.0),
                scale_every_s=self.scale_every_s,
            ),
            seen=FleetSeen(
                placed=len(placed),
                refused=sum(visit.was_refused for visit in visits),
                waits_s=[visit.placed_at - visit.at for visit in placed if visit.placed_at is not None],
                moves=len(self._moves),
                restored=self._num_restored,
                misses=sum(count - self._before[name] for name, count in self._misses.items()),
            ),
        )

    def _arrival(self, visit: _Visit, now: float, placed: list[_Visit]) -> Arrival:
        ended = now if visit.ended_at is None else visit.ended_at
        if visit.placed_at is not None:
            return Arrival(at=visit.at - self.started_at, asked=visit.asked, stay_s=ended - visit.placed_at)
        stays = [
            (now if each.ended_at is None else each.ended_at) - (each.placed_at or now) for each in placed
        ]
        patience = None if visit.was_refused else ended - visit.at
        return Arrival(
            at=visit.at - self.started_at, asked=visit.asked, stay_s=_mean(stays, 60.0), patience_s=patience
        )


@dataclass(eq=False, slots=True)
class FleetNotes:
    events: deque[FleetEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    move_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    recorder: FleetRecorder | None = None
    """Recorder of a trace, while one is asked for."""

    def note(
        self, kind: EventKind, replica_id: str, words: str, session_id: str = "", seconds: float | None = None
    ) -> None:
        event = FleetEvent(time.time(), kind, replica_id, session_id[:LABEL] + words, seconds)
        self.events.append(event)
        if self.recorder is not None:
            self.recorder.happened(event)
        if session_id:
            tracing.record(kind, session_id, seconds or 0.0, replica=replica_id)
        log.info("%s %s: %s", kind, replica_id, event.words)


def _mean(values: list[float], otherwise: float) -> float:
    return statistics.fmean(values) if values else otherwise


def _with_death(life: ReplicaLife, killed_at: float | None) -> ReplicaLife:
    return msgspec.structs.replace(life, killed_at=killed_at)
