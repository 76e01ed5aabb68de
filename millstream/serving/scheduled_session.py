"""One session as the scheduler sees it: its clocks, why it stands still, what it costs, when it is over. No
tensors, no clock.

Which session runs next is the business of `serving/scheduler.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from millstream.serving.session_life import SessionLife
from millstream.serving.turns import Halt, Run, SessionMetrics, Terms
from millstream.session.pacing import Playout

COST_SMOOTHING = 0.8
"""Share of the past in a session's measured load: settled within about ten chunks."""
GIVE_WAY_S = 5.0
"""Seconds that a session without viewers has for one to come back, while others could use its place."""


@dataclass(slots=True)
class DeviceCost:
    """Device seconds per second of media, smoothed over chunks."""

    load: float = 0.0
    """0 until the first chunk is out."""
    spent_s: float = 0.0
    """Since frames last came out."""

    def smooth(self, media_s: float) -> None:
        assert media_s > 0, f"frames that play {media_s} s"
        latest = self.spent_s / media_s
        self.spent_s = 0.0
        self.load = COST_SMOOTHING * self.load + (1 - COST_SMOOTHING) * latest if self.load else latest


@dataclass(slots=True)
class ScheduledSession:
    """One session, as the scheduler sees it."""

    session_id: str
    terms: Terms
    joined_at: float
    playout: Playout
    batch_key: Hashable
    life: SessionLife
    seat: int
    """Number of its seat. Neighbours share calls, and always the same ones, since recorded calls are those of
    certain sessions."""
    halts: set[Halt] = field(default_factory=set)
    turn: Run | None = None
    resident: bool = True
    ended: bool = False
    chunks: int = 0
    first_chunk_s: float | None = None
    cost: DeviceCost = field(default_factory=DeviceCost)
    """As it ran: of a batch, its share."""
    cost_alone: DeviceCost = field(default_factory=DeviceCost)
    """As if it had run by itself."""
    coming: Playout | None = None
    """The viewer's clock as if the frames of the chunk that arrived last were out; None when they are."""

    @property
    def clock(self) -> Playout:
        """Clock by which the next chunk is planned."""
        return self.coming or self.playout

    @property
    def clocks(self) -> tuple[Playout, ...]:
        """Both clocks, which stand still together."""
        return (self.playout,) if self.coming is None else (self.playout, self.coming)

    @property
    def runs(self) -> bool:
        """True if it has its place and no reason to stand still."""
        return self.life.placed and not self.halts

    def set_clocks(self, now: float) -> None:
        for clock in self.clocks:
            if self.runs and clock.halted_at is not None:
                clock.proceed(now)
            elif not self.runs and clock.halted_at is None:
                clock.halt(now)

    def offload_at(self, crowded: bool) -> float:
        halted_at = self.playout.halted_at
        idle_s = (
            min(GIVE_WAY_S, self.terms.idle_s) if crowded and "unwatched" in self.halts else self.terms.idle_s
        )
        return math.inf if halted_at is None or not self.resident else halted_at + idle_s

    @property
    def end_at(self) -> float:
        return math.inf if self.terms.max_life_s is None else self.joined_at + self.terms.max_life_s

    def expect(self, now: float, frames: int, rate: float, fps: float | None) -> None:
        assert self.coming is None, f"two chunks of {self.session_id} have arrived and neither is shown"
        self.coming = copy.copy(self.playout)
        self.coming.land(now, frames, rate=rate, fps=fps)

    def land(self, now: float, frames: int, rate: float, fps: float | None) -> None:
        self.coming = None
        self.playout.land(now, frames, rate=rate, fps=fps)
        media_s = frames / (fps or self.terms.pace.fps)
        self.cost.smooth(media_s)
        self.cost_alone.smooth(
            max(media_s, self.terms.pace.media_s)
        )  # an epoch's first chunk is short, and none after it
        self.chunks += 1
        if self.first_chunk_s is None:
            self.first_chunk_s = now - self.joined_at

    def over(self, now: float) -> str | None:
        made = self.chunks + (self.coming is not None)
        if self.terms.max_chunks is not None and made >= self.terms.max_chunks:
            return f"it has made its {self.terms.max_chunks} chunks; start a new session to go on"
        if now >= self.end_at:
            return f"it has lived its {self.terms.max_life_s:g} s; start a new session to go on"
        return None

    def metrics(self, now: float) -> SessionMetrics:
        playout = self.playout
        return SessionMetrics(
            session_id=self.session_id,
            chunks=self.chunks,
            misses=playout.misses,
            played_s=playout.played_s(now),
            stalled_s=playout.waited_s(now),
            continuity=playout.continuity(now),
            ahead_s=playout.ahead_s(now),
            first_chunk_s=self.first_chunk_s,
            load=self.cost.load,
            halted=not self.runs,
            resident=self.resident,
        )
