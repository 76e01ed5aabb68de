"""A device and viewers on paper: chunks take so long, viewers play them, and whoever runs dry has stalled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from millstream.serving.scheduler import Scheduler
from millstream.serving.turns import Run, Sleep, Terms
from millstream.session.pacing import Pace


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """One session as its viewer and the device know it."""

    fps: float
    chunk_s: float
    """On the device."""
    frames: int = 12

    @property
    def pace(self) -> Pace:
        return Pace(fps=self.fps, chunk_frames=self.frames)


@dataclass(slots=True)
class PaperViewer:
    played_s: float = 0.0
    stalled_s: float = 0.0
    dry_at: float | None = None

    def land(self, now: float, media_s: float) -> None:
        if self.dry_at is not None:
            self.stalled_s += max(0.0, now - self.dry_at)
        self.dry_at = max(now, self.dry_at or now) + media_s
        self.played_s += media_s

    @property
    def continuity(self) -> float:
        return self.played_s / (self.played_s + self.stalled_s) if self.played_s else 0.0


class Rule(Protocol):
    """Rule that chooses the session that runs now."""

    def next(self, now: float) -> str | float:
        """Return a session, or the moment to ask again."""

    def landed(self, name: str, now: float) -> None: ...


class InTurn:
    """Rule that runs sessions one after the other, as fast as possible."""

    def __init__(self, sessions: dict[str, Watched]) -> None:
        self._names = list(sessions)

    def next(self, now: float) -> str:
        self._names.append(self._names.pop(0))
        return self._names[-1]

    def landed(self, name: str, now: float) -> None:
        """All are alike."""


class EngineRule:
    """The engine's own scheduler: earliest deadline first, never further ahead of a viewer than the lead."""

    def __init__(self, sessions: dict[str, Watched]) -> None:
        self._sessions = sessions
        self._scheduler = Scheduler()
        for name, each in sessions.items():
            self._scheduler.add(name, Terms(pace=each.pace, unattended="run"), 0.0)

    def next(self, now: float) -> str | float:
        turn = self._scheduler.next(now)
        if isinstance(turn, Run):
            return turn.session_ids[0]
        assert isinstance(turn, Sleep), f"nothing else is asked for here: {turn}"
        assert turn.until is not None, "somebody will want a chunk"
        return turn.until

    def landed(self, name: str, now: float) -> None:
        each = self._sessions[name]
        self._scheduler.finished(name, now, frames=each.frames, seconds=each.chunk_s)


def played(rule: Rule, sessions: dict[str, Watched], until: float) -> dict[str, PaperViewer]:
    """Simulate viewers up to the time `until` and return them by session."""
    viewers = {name: PaperViewer() for name in sessions}
    now = 0.0
    while now < until:
        found = rule.next(now)
        if not isinstance(found, str):
            now = max(found, now + 1e-6)
            continue
        now += sessions[found].chunk_s
        viewers[found].land(now, sessions[found].pace.media_s)
        rule.landed(found, now)
    return viewers
