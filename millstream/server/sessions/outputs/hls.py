"""A session as HLS: its last few fragments of film, and the list of them that players ask for again and
again.

The fragments are those that other viewers in `mp4` get, encoded once. Made when somebody asks, let go when
nobody has for `UNASKED_S`. Bounded: `LISTED` fragments are in the list, and twice as many can be fetched, for
players that are late.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from millstream.core.errors import UnknownFile
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.sessions.viewers import OpeningBytes

LISTED = 6
UNASKED_S = 30.0
"""As long as a list may go unread before its player has certainly gone."""


@dataclass(frozen=True, slots=True)
class Segment:
    number: int
    seconds: float
    data: bytes


class HlsShelf:
    def __init__(self, live_session: LiveSession) -> None:
        self.opening = b""
        """Bytes that a player's decoder needs first."""
        self.begun = asyncio.Event()
        """Event that is set once there is something to play, or no more will come."""
        self._segments: deque[Segment] = deque(maxlen=2 * LISTED)
        self._target_s = 1
        self.ended = False
        """True if no more will come."""
        self._asked_at = time.monotonic()
        self._live_session = live_session
        self._outbox = Outbox()
        self._viewer = live_session.join("mp4", self._outbox)

    async def run(self) -> None:
        """Until the session is over, or nobody asks any more."""
        try:
            while not self.ended and (rest_s := self._asked_at + UNASKED_S - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest_s):
                        self._add(await self._outbox.pop())
        finally:
            self._live_session.remove_viewer(self._viewer)

    def _add(self, item: object) -> None:
        if item is None:
            self.ended = True
            self.begun.set()
        elif isinstance(item, OpeningBytes):
            self.opening = item.data
        elif isinstance(item, EncodedChunk) and item.parts:
            seconds = item.chunk.num_frames / item.chunk.fps
            number = self._segments[-1].number + 1 if self._segments else 0
            self._segments.append(Segment(number, seconds, b"".join(item.parts)))
            self._target_s = max(self._target_s, math.ceil(seconds))
            self.begun.set()

    def playlist(self, query: str) -> str:
        """Return the playlist. Its addresses carry the query of the request: a key, where one is needed."""
        self._asked_at = time.monotonic()
        listed = list(self._segments)[-LISTED:]
        lines = [
            "#EXTM3U",
            "#EXT-X-VERSION:7",
            "#EXT-X-INDEPENDENT-SEGMENTS",
            f"#EXT-X-TARGETDURATION:{self._target_s}",
            f"#EXT-X-MEDIA-SEQUENCE:{listed[0].number if listed else 0}",
            f'#EXT-X-MAP:URI="init.mp4{query}"',
        ]
        for segment in listed:
            lines += [f"#EXTINF:{segment.seconds:.5f},", f"{segment.number}.m4s{query}"]
        return "\n".join([*lines, *(["#EXT-X-ENDLIST"] if self.ended else []), ""])

    def segment(self, name: str) -> bytes:
        """Return a file that the playlist names."""
        if name == "init.mp4" and self.opening:
            return self.opening
        for segment in self._segments:
            if name == f"{segment.number}.m4s":
                return segment.data
        raise UnknownFile("there is no such segment; the list names those there are")
