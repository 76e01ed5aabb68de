"""Each chunk of a session encoded once for every format somebody watches in, in a pool of threads. Knows no viewers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from millstream.core.messages import Format
from millstream.server.sessions.outbox import ChunkInfo, EncodedChunk
from millstream.video.encoding import Encoder, Frames, encoder_for


@dataclass(slots=True)
class FreshChunk:
    info: ChunkInfo
    frames: Frames | None
    """None once they were let go."""


@dataclass(slots=True)
class _Encoding:
    """One format's encoder, and the last chunk that went through it."""

    encoder: Encoder
    last: EncodedChunk | None = None


class ChunkEncodings:
    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._of: dict[Format, _Encoding] = {}

    async def encode(self, format: Format, fresh: FreshChunk) -> EncodedChunk:
        """Without pictures where the frames were let go. The last one again is not encoded again."""
        if fresh.frames is None:
            return EncodedChunk(info=fresh.info, format=format, parts=())
        encoding = self._of.setdefault(format, _Encoding(encoder_for(format)))
        if encoding.last is None or encoding.last.info.index != fresh.info.index:
            encode = partial(encoding.encoder.encode, fresh.frames, fps=fresh.info.fps)
            parts = await asyncio.get_running_loop().run_in_executor(self._pool, encode)
            encoding.last = EncodedChunk(info=fresh.info, format=format, parts=parts)
        return encoding.last

    def opening(self, format: Format) -> bytes | None:
        """What a decoder of such pictures needs first."""
        encoding = self._of.get(format)
        return None if encoding is None else encoding.encoder.opening

    def keep(self, formats: Collection[Format]) -> None:
        """No others are watched any more."""
        for unused in self._of.keys() - set(formats):
            del self._of[unused]
