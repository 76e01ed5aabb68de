"""One chunk encoded by several threads: its stills in pieces, in order, by whoever of a pool has nothing else
to do.

Knows no sessions. Runs on a thread of that pool. It makes itself what no other thread has begun, so it never
waits for one that is not at work: a busy pool encodes each chunk on one thread, as before, and nothing can
wait for itself.
Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future
from contextlib import suppress

from millstream.video.encoding import Encoder, Frames, ImageEncoder

PIECE = 4
"""Pictures for which it is worth waking a thread, which takes a hundredth of what they do."""

Encoded = tuple[tuple[bytes, ...], float]
"""One part a frame, or one fragment; and how long threads were at work."""


def encode_piecewise(pool: Executor, encoder: Encoder, frames_THW3: Frames, fps: float) -> Encoded:
    """All parts in order, whoever made them; raises what any of them raised."""
    if (
        not isinstance(encoder, ImageEncoder) or encoder.format == "raw"
    ):  # a film goes on where it was; raw is a copy
        return _timed(encoder, frames_THW3, fps)
    pieces = [frames_THW3[first : first + PIECE] for first in range(0, len(frames_THW3), PIECE)]
    offered = dict[int, Future[Encoded]]()
    with suppress(RuntimeError):  # the pool takes nothing any more: it is being closed
        for number in range(1, len(pieces)):
            offered[number] = pool.submit(_timed, encoder, pieces[number], fps)
    try:
        made = {0: _timed(encoder, pieces[0], fps)}
        for number in reversed(range(1, len(pieces))):  # others begin with the first that were offered
            if number not in offered or offered[number].cancel():
                made[number] = _timed(encoder, pieces[number], fps)
        done = [made[number] if number in made else offered[number].result() for number in range(len(pieces))]
    finally:
        for future in offered.values():
            future.cancel()
    return tuple(part for parts, _ in done for part in parts), sum(seconds for _, seconds in done)


def _timed(encoder: Encoder, frames_THW3: Frames, fps: float) -> Encoded:
    begun = time.monotonic()
    return encoder.encode(frames_THW3, fps=fps), time.monotonic() - begun
