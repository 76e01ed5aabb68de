"""Video chapter 5, exercises. Fill in the functions, then run `millstream course check V5`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def load_of(sessions: Sequence[tuple[float, float]]) -> float:
    """Return the share of a device that sessions need; 1 is all of it. Each is (seconds that a chunk takes,
    seconds that it plays)."""
    raise NotImplementedError("load_of")


def fitting_rate(chunk_s: float, frames: int, sessions: int) -> float:
    """Return the highest frame rate that so many sessions can all have, if chunks of `frames` pictures take
    `chunk_s`."""
    raise NotImplementedError("fitting_rate")


def next_session(dry_at: Mapping[str, float], plays_s: Mapping[str, float], now: float) -> str | None:
    """Return the session to run: the one whose viewer runs dry first, of those that would not get more than
    two chunks ahead.

    `dry_at`: when each viewer has played all there is; `plays_s`: what a chunk plays. None if no session may
    run.
    """
    raise NotImplementedError("next_session")
