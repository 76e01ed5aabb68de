"""The pictures of an outbox one frame at a time, each when it is due. For whoever cannot be told when to show
what.

Bounded by the outbox: whoever takes frames too slowly goes without some, oldest first, and what comes then is
shown at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from millstream.server.sessions.outbox import EncodedChunk, Outbox

LATE_S = 0.1
"""A frame that is less late than this is shown at once, and the next one in time again."""


class Playhead:
    """Position of a viewer in a stream whose frames are pushed to it one by one. Pure arithmetic: seconds of
    some clock come in.

    Frames are shown at the pace of media time. When they come late, everything after them moves; when some
    were left out, the next one takes their place, so that what waits never grows old.
    """

    def __init__(self) -> None:
        self._zero: float | None = None
        """When media time 0 would have been shown; None before the first frame."""
        self._begun = 0.0
        self._next_media_s = 0.0

    def show_at(self, media_s: float, frame_s: float, now: float) -> float:
        """When to show a frame that lies at `media_s` and lasts `frame_s`."""
        assert frame_s > 0, f"a frame that lasts {frame_s} s"
        if self._zero is None:
            self._zero = now - media_s
            self._begun = now
        elif media_s - self._next_media_s > frame_s:
            self._zero -= media_s - self._next_media_s
        self._next_media_s = media_s + frame_s
        due = self._zero + media_s
        if now - due > LATE_S:
            self._zero += now - due
        return max(due, now)

    def elapsed_s(self, shown_at: float) -> float:
        """Since the first frame."""
        return shown_at - self._begun


class PacedFrames:
    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._frames: deque[tuple[float, float, bytes]] = deque()
        """Media time, how long it lasts, its bytes; of one chunk."""
        self._playhead = Playhead()

    async def next(self) -> tuple[bytes, float] | None:
        """The next frame, when it is due, and how long after the first one that is; None after the last. May
        be cancelled."""
        while not self._frames:
            item = await self._outbox.pop()
            if item is None:
                return None
            if isinstance(item, EncodedChunk):
                frame_s = 1 / item.chunk.fps
                self._frames.extend(
                    (item.chunk.media_s + n * frame_s, frame_s, part) for n, part in enumerate(item.parts)
                )
        media_s, frame_s, part = self._frames[0]
        due = self._playhead.show_at(media_s, frame_s, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        self._frames.popleft()
        return part, self._playhead.elapsed_s(due)
