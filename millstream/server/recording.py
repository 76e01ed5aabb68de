"""A live session to an mp4, beside the stream. Frames wait in a short line; what writes them has a thread of its own.

Bounded: when the line is full, a chunk is left out and counted, so that a slow disk never holds up the picture; after
`max_seconds` of film the recording takes no more. However it ends, the file is whole or not there.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from millstream.core.errors import VideoError
from millstream.server.encoding import Frames
from millstream.server.video_writer import VideoWriter

log = logging.getLogger(__name__)

MAX_WAITING = 8
MAX_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Recorded:
    num_frames: int
    left_out: int
    """Chunks that were not written: the disk was too slow, or the film too long."""


class Recording:
    """Made on the event loop; `add` never waits."""

    def __init__(self, path: Path, *, fps: float, pool: Executor, max_seconds: float = MAX_SECONDS) -> None:
        self.path = path
        self.left_out = 0
        self._max_frames = int(max_seconds * fps)
        self._taken = 0
        self._writer = VideoWriter(path, fps=fps)
        self._pool = pool
        self._line: asyncio.Queue[Frames | None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._write(), name="millstream-recording")

    def add(self, frames_THW3: Frames) -> None:
        if self._line.qsize() >= MAX_WAITING or self._taken + len(frames_THW3) > self._max_frames:
            self.left_out += 1
            return
        self._taken += len(frames_THW3)
        self._line.put_nowait(frames_THW3)

    async def finish(self) -> Recorded:
        """Write what waits and close the file. Raises `VideoError` where there is none."""
        self._line.put_nowait(None)
        await asyncio.shield(self._task)
        return Recorded(self._writer.num_frames, self.left_out)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        error: VideoError | None = None
        while (frames := await self._line.get()) is not None:
            if error is None:
                try:
                    await loop.run_in_executor(self._pool, self._writer.write, frames)
                except VideoError as failure:
                    log.error("a recording has failed: %s", failure)
                    error = failure
        await loop.run_in_executor(self._pool, self._writer.__exit__, None, None, None)
        if error is not None:
            raise error
