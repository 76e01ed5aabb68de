"""A live session to an mp4, beside the stream. Frames wait in a short line; what writes them has a thread of
its own.

Bounded: when the line is full, a chunk is left out and counted, so that a slow disk never holds up the
picture; after `max_seconds` of film the recording takes no more. A disk that fails ends it with what is whole
until then. However it ends, the file is whole or not there; that of a program that was killed is cut to what
is whole by `server/sessions/file_store.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from millstream.core.errors import VideoError
from millstream.video.encoding import Frames
from millstream.video.writer import VideoWriter

log = logging.getLogger(__name__)

MAX_WAITING = 8
MAX_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Recorded:
    num_frames: int
    left_out: int
    """Chunks that were not written: the disk was too slow, or the film too long."""
    cut_short: bool = False
    """True if the disk failed, and the file is what was whole until then."""


class Recording:
    """Made on the event loop; `add` never waits, and `failed` is called there when it can go on no longer."""

    def __init__(
        self,
        path: Path,
        *,
        fps: float,
        pool: Executor,
        max_seconds: float = MAX_SECONDS,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        self.path = path
        self.left_out = 0
        self.broken = False
        """True if it had frames that could not be written."""
        self.fed_at = time.monotonic()
        """Time at which it last took frames."""
        self._max_seconds = max_seconds
        self.taken_s = 0.0
        """Seconds of film that it has taken."""
        self._writer = VideoWriter(path, fps=fps, growing=True)
        self._failed = failed
        self._pool = pool
        self._line: asyncio.Queue[tuple[Frames, float] | None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._write(), name="millstream-recording")

    def add(self, frames_THW3: Frames, fps: float) -> None:
        """Frames that play at this rate, which may be another than the last ones'."""
        assert fps > 0, f"frames at {fps} a second"
        lasts_s = len(frames_THW3) / fps
        if self.broken or self._line.qsize() >= MAX_WAITING or self.taken_s + lasts_s > self._max_seconds:
            self.left_out += 1
            return
        self.taken_s += lasts_s
        self.fed_at = time.monotonic()
        self._line.put_nowait((frames_THW3, fps))

    async def finish(self) -> Recorded:
        """Write what waits and close the file. Raises `VideoError` where there is none."""
        self._line.put_nowait(None)
        cut_short = await asyncio.shield(self._task)
        return Recorded(self._writer.num_frames, self.left_out, cut_short)

    async def _write(self) -> bool:
        """Write frames until the end; return whether the file was cut short."""
        loop = asyncio.get_running_loop()
        writer = self._writer
        try:
            while (taken := await self._line.get()) is not None:
                frames, writer.fps = taken
                await loop.run_in_executor(self._pool, writer.write, frames)
            await loop.run_in_executor(self._pool, writer.finish)
        except VideoError as failure:
            self.broken = writer.failed or writer.num_frames > 0
            if self.broken:
                log.error("a recording has failed: %s", failure)
                self._failed()
            if not await loop.run_in_executor(self._pool, writer.rescue):
                raise
            return True
        return False
