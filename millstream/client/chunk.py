"""A chunk as a program gets it, and the few that wait to be taken. Frames are decoded when they are first
looked at.

Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from millstream.core.errors import ClientError
from millstream.core.server_messages import ChunkHeader

StillFormat = Literal["jpeg", "webp", "raw"]
"""Formats that can be decoded here: a picture a frame. `raw` is lossless and many times larger."""
JPEG_QUALITY = 95
"""JPEG quality of input frames: the model sees what is lost here."""
MAX_BUFFER_BYTES = 128 * 2**20
"""Most bytes of pictures that wait to be taken; beyond that the oldest are dropped and counted."""


@dataclass(frozen=True)
class ClientChunk:
    header: ChunkHeader
    """All that was said about it: prompts in force, receipts, times."""
    data: memoryview
    """Its parts, end to end."""
    size: tuple[int, int] = (0, 0)
    """Height and width, once the session has said them."""

    @property
    def index(self) -> int:
        return self.header.index

    @property
    def fps(self) -> float:
        """Frames a second at which it is to be shown."""
        return self.header.fps

    @cached_property
    def frames(self) -> NDArray[np.uint8]:
        """Frames (T, H, W, 3). T is 0 where this client was too slow for its pictures."""
        frames = [self._decode(part) for part in self.parts()]
        return np.stack(frames) if frames else np.empty((0, *self.size, 3), np.uint8)

    def parts(self) -> Iterator[memoryview]:
        """Encoded frames, or one fragment of a film."""
        at = 0
        for size in self.header.sizes:
            yield self.data[at : at + size]
            at += size

    def _decode(self, part: memoryview) -> NDArray[np.uint8]:
        if self.header.format == "raw":
            return np.frombuffer(part, np.uint8).reshape(*self.size, 3)
        try:
            with Image.open(io.BytesIO(part), formats=[self.header.format]) as picture:
                return np.asarray(picture.convert("RGB"))
        except (UnidentifiedImageError, OSError) as error:
            raise ClientError(
                f"chunk {self.index} has a picture that is no {self.header.format}: {error}"
            ) from None


def jpeg(frame_HW3: NDArray[np.uint8]) -> bytes:
    """An input frame as it is sent."""
    if frame_HW3.dtype != np.uint8 or frame_HW3.ndim != 3 or frame_HW3.shape[2] != 3:
        raise ClientError(
            f"a frame must be bytes of shape (height, width, 3), got {frame_HW3.dtype} {frame_HW3.shape}"
        )
    file = io.BytesIO()
    Image.fromarray(frame_HW3).save(file, "jpeg", quality=JPEG_QUALITY)
    return file.getvalue()


class ChunkBuffer:
    """Chunks that came and were not taken yet. When it is full the oldest are dropped: a server is never
    made to wait."""

    def __init__(self, max_bytes: int = MAX_BUFFER_BYTES) -> None:
        self.dropped = 0
        """Number of chunks dropped before they were taken."""
        self._max_bytes = max_bytes
        self._chunks = deque[ClientChunk]()
        self._num_bytes = 0

    def put(self, chunk: ClientChunk) -> None:
        self._chunks.append(chunk)
        self._num_bytes += len(chunk.data)
        while self._num_bytes > self._max_bytes and len(self._chunks) > 1:
            self.pop()
            self.dropped += 1

    def clear(self) -> None:
        """Drop all that wait; not counted as `dropped`, for their time is over."""
        self._chunks.clear()
        self._num_bytes = 0

    def pop(self) -> ClientChunk | None:
        """The oldest; None where there is none."""
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        self._num_bytes -= len(chunk.data)
        assert self._num_bytes >= 0, f"{len(self._chunks)} chunks wait in {self._num_bytes} bytes"
        return chunk
