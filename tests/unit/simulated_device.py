"""A device that exists on paper: it takes the turns a scheduler hands out, on a clock that only it moves.

It checks what must hold in every run: a Run names sessions that may run, and nothing sleeps while one may.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.serving.scheduler import Scheduler
from millstream.serving.turns import EndTurn, Offload, RestoreTurn, Run, Sleep, Terms
from millstream.session.pacing import Pace

FULL = 12
FIRST = 9
"""Frames of a chunk, and of the first of an epoch."""


@dataclass
class Shadow:
    """What a viewer of one session sees, worked out from landings alone and not by the code under test."""

    pace: Pace
    landings: list[tuple[float, int]] = field(default_factory=list)
    running: bool = False
    halted_at: float | None = None
    dry_at: float = 0.0
    stalled_s: float = 0.0
    misses: int = 0
    furthest_ahead_s: float = 0.0

    def land(self, now: float, frames: int) -> None:
        time = now if self.halted_at is None else self.halted_at
        if self.landings and time > self.dry_at + 1e-9:
            self.misses += 1
            self.stalled_s += time - self.dry_at
        start = max(time, self.dry_at) if self.landings else time
        self.dry_at = start + frames / self.pace.fps
        self.furthest_ahead_s = max(self.furthest_ahead_s, self.dry_at - time)
        self.landings.append((now, frames))

    def proceed(self, now: float) -> None:
        assert self.halted_at is not None
        self.dry_at += now - self.halted_at
        self.halted_at = None

    def may_run(self, now: float) -> bool:
        if self.running or self.halted_at is not None:
            return False
        ahead = self.dry_at - now if self.landings else -math.inf
        return ahead + self.pace.media_s <= self.pace.max_ahead_s - 1e-9  # clearly, not by rounding


@dataclass
class SimulatedDevice:
    scheduler: Scheduler
    seconds: Callable[[tuple[str, ...]], float]
    """How long a turn of these sessions takes."""
    first_frames: int = FULL
    now: float = 0.0
    busy_s: float = 0.0
    shadows: dict[str, Shadow] = field(default_factory=dict)
    turns: list[tuple[float, Run]] = field(default_factory=list)
    chores: list[tuple[float, Offload | RestoreTurn | EndTurn]] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)

    def at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, len(self._events), event))

    def add(self, session_id: str, terms: Terms, *, batch_key: str | None = None) -> None:
        self.scheduler.add(session_id, terms, self.now, batch_key=batch_key)
        self.shadows[session_id] = Shadow(terms.pace)

    def set_pace(self, session_id: str, pace: Pace) -> None:
        self.scheduler.set_pace(session_id, pace)
        self.shadows[session_id].pace = pace

    def remove(self, session_id: str) -> None:
        self.scheduler.remove(session_id, self.now)
        del self.shadows[session_id]

    def halt(self, session_id: str, now: float) -> None:
        self.scheduler.halt(session_id, "paused", now)
        self.shadows[session_id].halted_at = now

    def proceed(self, session_id: str, now: float) -> None:
        self.scheduler.proceed(session_id, "paused", now)
        self.shadows[session_id].proceed(now)

    def run(self, until: float) -> None:
        while self.now < until:
            turn = self.scheduler.next(self.now)
            match turn:
                case Run():
                    self._work(turn)
                case Sleep():
                    awake = [name for name, shadow in self.shadows.items() if shadow.may_run(self.now)]
                    assert not awake, f"asleep at {self.now} while {awake} may run"
                    assert turn.until is None or turn.until > self.now, (
                        f"sleeping from {self.now} until {turn.until}"
                    )
                    self._pass_time(
                        min(until, turn.until or until, self._events[0][0] if self._events else until)
                    )
                case EndTurn(session_id=name):
                    self.chores.append((self.now, turn))
                    self.remove(name)
                case Offload() | RestoreTurn():
                    self.chores.append((self.now, turn))

    def landings(self, session_id: str) -> list[float]:
        return [time for time, _ in self.shadows[session_id].landings]

    def _work(self, run: Run) -> None:
        self.turns.append((self.now, run))
        for name in run.session_ids:
            shadow = self.shadows[name]
            assert not shadow.running, f"{name} was handed out twice"
            assert shadow.halted_at is None, f"{name} is halted and was handed out"
            shadow.running = True
        seconds = self.seconds(run.session_ids)
        self.busy_s += seconds
        self._pass_time(self.now + seconds)
        for name in run.session_ids:
            shadow = self.shadows[name]
            shadow.running = False
            frames = FULL if shadow.landings else self.first_frames
            shadow.land(self.now, frames)
            self.scheduler.finished(name, self.now, frames=frames, seconds=seconds)

    def _pass_time(self, to: float) -> None:
        while self._events and self._events[0][0] <= to:
            time, _, event = heapq.heappop(self._events)
            self.now = max(self.now, time)
            event(self.now)
        self.now = max(self.now, to)
