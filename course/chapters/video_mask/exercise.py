"""Video chapter 2, exercises. Fill in the functions, then run `millstream course check V2`."""

from __future__ import annotations


def sees(frame: int, other: int, frames_per_chunk: int, window: int) -> bool:
    """Return whether a frame attends to another: all of its own chunk, and earlier ones; `window` frames up
    to its chunk's end."""
    raise NotImplementedError("sees")


def slots_after(frames: int, window: int, sink: int) -> list[int]:
    """Return what is in each slot after `frames` frames, if frames 0, 1, 2 ... are written into a ring of
    `window` slots, one by one.

    The first `sink` frames never leave. When all slots are taken, the oldest other frame is overwritten. -1:
    nothing yet.
    """
    raise NotImplementedError("slots_after")


def ring_bytes(window: int, tokens: int, layers: int, width: int, value_bytes: int) -> int:
    """Keys and values of one session."""
    raise NotImplementedError("ring_bytes")
