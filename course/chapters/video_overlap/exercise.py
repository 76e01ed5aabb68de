"""Video chapter 4, exercises. Fill in the functions, then run `millstream course check V4`."""

from __future__ import annotations


def model_calls(steps: int, *, commits: bool, rebuilt_chunks: int) -> int:
    """Return the model calls of one chunk: its steps, its commit, and one for each chunk of the window that
    is rebuilt first."""
    raise NotImplementedError("model_calls")


def period_ms(front_ms: float, mesh_ms: float, *, overlaps: bool) -> float:
    """Return the milliseconds from one chunk to the next."""
    raise NotImplementedError("period_ms")


def hidden_share(front_ms: float, mesh_ms: float, period_ms: float) -> float:
    """Return the share of the shorter side that took no time of its own: 0 one after the other, 1 at the same
    time."""
    raise NotImplementedError("hidden_share")


def timeline(front_ms: float, mesh_ms: float, chunks: int, in_flight: int) -> list[float]:
    """Return when the pictures of each chunk are there. The mesh takes chunks in order, the front makes their
    pictures in order.

    A chunk may begin on the mesh only when fewer than `in_flight` chunks have begun and are not shown yet.
    Begin at 0.
    """
    raise NotImplementedError("timeline")
