"""Data passed to and from the scheduler: terms of a session, turns for the engine, and metrics.

How a turn is chosen is the business of `serving/scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from millstream.core.errors import ConfigError
from millstream.session.pacing import Pace

Halt = Literal["paused", "starved", "unwatched", "leaving"]
"""Reason why a session stands still: its owner said so, its input has not come, it has no viewer, or it moves
to another server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Pace and priority that one session asks for, and its limits."""

    pace: Pace
    weight: float = 1.0
    """Its priority when there is not enough for all: with twice the weight, twice the share of real time."""
    unattended: Literal["run", "pause"] = "pause"
    """Behaviour without viewers: stand still, or run, which suits a recording."""
    idle_s: float = 60.0
    """Seconds of standing still after which its state moves to host memory."""
    max_life_s: float | None = None
    max_chunks: int | None = None

    def __post_init__(self) -> None:
        if not 0.01 <= self.weight <= 100:
            raise ConfigError(f"weight must be between 0.01 and 100, got {self.weight}")
        if self.unattended not in ("run", "pause"):
            raise ConfigError(f"unattended must be run or pause, got {self.unattended!r}")
        limits = (self.idle_s, self.max_life_s, self.max_chunks)
        if any(limit is not None and not limit > 0 for limit in limits):
            raise ConfigError(f"idle_s, max_life_s and max_chunks must be above 0, got {limits}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One unit of work for each of these sessions, as one batch where there are several."""

    session_ids: tuple[str, ...]
    batch_key: Hashable
    """Caller's name for this kind of work; None for work that is never shared."""

    def __post_init__(self) -> None:
        assert self.session_ids, "a turn of no session"
        assert len(set(self.session_ids)) == len(self.session_ids), (
            f"a session has one turn at a time: {self.session_ids}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreTurn:
    """Bring this session's state back to the device: its turn has come."""

    session_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Offload:
    """Move this session's state to host memory."""

    session_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EndTurn:
    """A session has reached a limit: close it, then `remove` it."""

    session_id: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sleep:
    """Nothing to do until then, or until the caller changes something; None: only the caller can."""

    until: float | None


Turn = Run | RestoreTurn | Offload | EndTurn | Sleep


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionMetrics:
    session_id: str
    chunks: int
    misses: int
    played_s: float
    stalled_s: float
    continuity: float
    """played / (played + stalled)"""
    ahead_s: float
    first_chunk_s: float | None
    """From joining to the first chunk."""
    load: float
    """Device seconds per second of media."""
    halted: bool
    resident: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerMetrics:
    sessions: tuple[SessionMetrics, ...]
    utilisation: float
    """Share of the device that sessions which are not halted ask for; above 1 it is overloaded."""
    busy_s: float
    """Device seconds of all turns that finished."""
    ready: int
    """Sessions that may run and do not yet."""
