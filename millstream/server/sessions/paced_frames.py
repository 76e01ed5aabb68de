"""The pictures of an outbox one frame at a time, each when it is due. For whoever cannot be told when to show what.

Bounded by the outbox: whoever takes frames too slowly goes without some, oldest first, and what comes then is shown at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.sessions.playhead import Playhead


class PacedFrames:
    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._frames: deque[tuple[float, float, bytes]] = deque()
        """Media time, how long it lasts, its bytes; of one chunk."""
        self._playhead = Playhead()

    async def next(self) -> tuple[bytes, float] | None:
        """The next frame, when it is due, and how long after the first one that is; None after the last. May be cancelled."""
        while not self._frames:
            item = await self._outbox.take()
            if item is None:
                return None
            if isinstance(item, EncodedChunk):
                frame_s = 1 / item.info.fps
                self._frames.extend((item.info.media_s + n * frame_s, frame_s, part) for n, part in enumerate(item.parts))
        media_s, frame_s, part = self._frames[0]
        due = self._playhead.show_at(media_s, frame_s, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        self._frames.popleft()
        return part, self._playhead.elapsed_s(due)
