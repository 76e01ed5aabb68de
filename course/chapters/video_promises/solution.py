"""Video chapter 5, solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def load_of(sessions: Sequence[tuple[float, float]]) -> float:
    return sum(takes / plays for takes, plays in sessions)


def fitting_rate(chunk_s: float, frames: int, sessions: int) -> float:
    return frames / (sessions * chunk_s)


def next_session(dry_at: Mapping[str, float], plays_s: Mapping[str, float], now: float) -> str | None:
    ready = [name for name, dry in dry_at.items() if max(dry, now) + plays_s[name] - now <= 2 * plays_s[name]]
    return min(ready, key=lambda name: dry_at[name], default=None)
