"""Two questions to a server as a whole: what it spends beside making chunks, and at which rate it lets so
many people in."""

from __future__ import annotations

import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from millstream.core.errors import LoadError
from millstream.load.visitor import Visitor, VisitRefused

MAX_CHUNK_FRAMES = 16
"""More than a chunk has."""
PRECISION = 0.001
"""By how much of itself the rate that is found may be too low."""
SLOWEST_FPS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    chunks: int
    chunk_s: float
    """Median of what the server says a chunk took."""
    chunk_frames: int
    share: float
    """Time between chunks that went into none of them, over the time that did."""


async def measure_overhead(url: str, *, chunks: int, warm_up: int, fps: float) -> Overhead:
    """One session that may be so far ahead that its chunks are made without a pause.

    What the server's engine does beside the session's own work then shows as distance between chunks.
    Frames travel raw, so that nothing is encoded meanwhile.
    """
    assert warm_up >= 1, "what is measured begins with the arrival of a chunk before"
    assert chunks >= 1, f"{chunks} chunks are measured"
    count = warm_up + chunks
    async with Visitor(url, format="raw") as visitor:
        await visitor.ask(fps=fps, lead_s=count * MAX_CHUNK_FRAMES / fps)
        arrived = [(await visitor.next_chunk(), time.monotonic()) for _ in range(count)]
    made_s = [header.total_ms / 1000 for header, _ in arrived[warm_up:]]
    passed_s = arrived[-1][1] - arrived[warm_up - 1][1]
    return Overhead(
        chunks=chunks,
        chunk_s=statistics.median(made_s),
        chunk_frames=arrived[-1][0].frames,
        share=passed_s / sum(made_s) - 1,
    )


async def find_rate(url: str, *, sessions: int, at_most: float) -> float:
    """The highest rate at which so many are let in together, by bisection: few try, so that the device is as
    it would be."""
    assert at_most > SLOWEST_FPS, f"{at_most} frames a second are few to begin with"
    if await count_admitted(url, sessions=sessions, fps=at_most) == sessions:
        return at_most
    fits = 0.0
    too_fast = at_most
    while too_fast * (1 - PRECISION) > fits:
        fps = (fits + too_fast) / 2
        if fps < SLOWEST_FPS:
            raise LoadError(
                f"the server lets {sessions} sessions in at no rate above {SLOWEST_FPS:g}; try a smaller "
                "model"
            )
        if await count_admitted(url, sessions=sessions, fps=fps) == sessions:
            fits = fps
        else:
            too_fast = fps
    return fits


async def count_admitted(url: str, *, sessions: int, fps: float) -> int:
    """How many of so many find a place, one after another; all leave again."""
    async with AsyncExitStack() as visitors:
        for number in range(sessions):
            visitor = await visitors.enter_async_context(Visitor(url))
            try:
                await visitor.ask(fps=fps)
            except VisitRefused:
                return number
    return sessions
