"""Video chapter 2, solution."""

from __future__ import annotations


def sees(frame: int, other: int, frames_per_chunk: int, window: int) -> bool:
    end = (frame // frames_per_chunk + 1) * frames_per_chunk
    return end - window <= other < end


def slots_after(frames: int, window: int, sink: int) -> list[int]:
    slots = [-1] * window
    for frame in range(frames):
        slots[frame if frame < window else sink + (frame - window) % (window - sink)] = frame
    return slots


def ring_bytes(window: int, tokens: int, layers: int, width: int, value_bytes: int) -> int:
    return 2 * window * tokens * layers * width * value_bytes
