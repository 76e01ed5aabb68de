"""Each chunk of a session encoded once for every format somebody watches in, in a pool of threads. Knows no
viewers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from millstream.core.client_messages import Format
from millstream.server.sessions.outbox import EncodedChunk
from millstream.server.sessions.piecewise import encode_piecewise
from millstream.session.chunk import Chunk
from millstream.video.encoding import Encoder, encoder_for


@dataclass(slots=True)
class _Encoding:
    """One format's encoder, and the last chunk that went through it."""

    encoder: Encoder
    last: EncodedChunk | None = None


class ChunkEncodings:
    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._of: dict[Format, _Encoding] = {}
        self._seconds = 0.0

    async def encode_all(self, formats: Collection[Format], chunk: Chunk) -> list[EncodedChunk]:
        """In each of them, beside each other; in a single one without a task of its own."""
        if len(formats) == 1:
            return [await self.encode(format, chunk) for format in formats]
        return list(await asyncio.gather(*(self.encode(format, chunk) for format in formats)))

    async def encode(self, format: Format, chunk: Chunk) -> EncodedChunk:
        """Without pictures where the frames were let go. The last one again is not encoded again."""
        if not len(chunk.frames):
            return EncodedChunk(chunk=chunk, format=format, parts=())
        encoding = self._of.setdefault(format, _Encoding(encoder_for(format)))
        if encoding.last is None or encoding.last.chunk.index != chunk.index:
            encode = partial(encode_piecewise, self._pool, encoding.encoder, chunk.frames, chunk.fps)
            parts, seconds = await asyncio.get_running_loop().run_in_executor(self._pool, encode)
            self._seconds += seconds
            encoding.last = EncodedChunk(chunk=chunk.without_frames(), format=format, parts=parts)
        return encoding.last

    def take_seconds(self) -> float:
        """How long threads were at work since it was last asked."""
        seconds = self._seconds
        self._seconds = 0.0
        return seconds

    def opening(self, format: Format) -> bytes | None:
        """Return the bytes that a decoder of such pictures needs first."""
        encoding = self._of.get(format)
        return None if encoding is None else encoding.encoder.opening

    def retain(self, formats: Collection[Format]) -> None:
        """Drop the encodings in all other formats, which have no viewers any more."""
        for unused in self._of.keys() - set(formats):
            del self._of[unused]
