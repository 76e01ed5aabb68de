"""Chunks as the load harness hears of them, at one rate."""

from __future__ import annotations

from millstream.core.controls import Receipt
from millstream.core.server_messages import ChunkHeader

FPS = 16.0
FRAMES = 12
CHUNK_S = FRAMES / FPS


def chunk(
    index: int, *, pictures: bool = True, shows: tuple[str, ...] = (), media_s: float | None = None
) -> ChunkHeader:
    return ChunkHeader(
        index=index,
        epoch=0,
        media_s=index * CHUNK_S if media_s is None else media_s,
        fps=FPS,
        frames=FRAMES,
        format="jpeg",
        sizes=(10,) * FRAMES if pictures else (),
        prompts=(),
        unknown=(),
        receipts=tuple(Receipt(control_id=name, state="applied", chunk_index=index) for name in shows),
        total_ms=0.0,
        phases_ms={},
        late_s=0.0,
        dropped=0,
    )
