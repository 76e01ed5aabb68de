"""What happened to a fleet, as those who watch it are shown it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_EVENTS = 500
EventKind = Literal["ready", "death", "move", "move failed", "restored", "lost", "start", "start failed", "stop", "drain"]


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
