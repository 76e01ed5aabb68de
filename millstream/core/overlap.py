"""Measure of how well front and mesh work at the same time, from figures of every chunk: times of both, the
mesh's idling, the queues.

`stage0` is the front's work for a chunk, `stage1` the mesh's. Without overlap a chunk takes their sum, at
best the longer one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Signature = Literal["mesh-bound", "front-bound", "serialised"]

LEFT_OUT = 10
"""First chunks that say nothing: windows fill, caches warm."""
IDLING = 0.1
"""Idle time of a mesh that is never kept waiting is less than this share of its work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkPace:
    """One chunk; lengths in milliseconds."""

    stage0_ms: float
    stage1_ms: float
    period_ms: float
    """Since the chunk before was shown."""
    idle_ms: float = 0.0
    """The mesh's, before it began this chunk."""
    latency_ms: float = 0.0
    """From its plan to its pictures: what a control waits for."""
    waiting_in: int = 0
    """Chunks with the mesh when the front began to make this one's pictures."""
    waiting_out: int = 0
    """Chunks that were done by then and not looked at."""
    chunk_index: int = -1
    back_s: float = 0.0
    """Seconds by the front's clock: when its latents were back, its frames were begun, and were there."""
    decode_start_s: float = 0.0
    shown_s: float = 0.0

    @property
    def hidden_ms(self) -> float:
        """How much of the shorter stage took no time of its own."""
        return max(0.0, self.stage0_ms + self.stage1_ms - self.period_ms)

    @property
    def score(self) -> float:
        shorter = min(self.stage0_ms, self.stage1_ms)
        return self.hidden_ms / shorter if shorter > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Medians over a run."""

    score: float
    stage0_ms: float
    stage1_ms: float
    period_ms: float
    idle_ms: float
    latency_ms: float
    waiting_in: float
    waiting_out: float

    @property
    def signature(self) -> Signature:
        """Kind of waiting between front and mesh.

        Serialised: nothing is with the mesh while the front makes pictures, so the mesh idles for as long as
        that takes. Front-bound: chunks wait to be shown, or the mesh idles because the front takes longer.
        Else the mesh sets the pace.
        """
        if self.waiting_in < 1 and self.waiting_out < 1:
            return "serialised"
        if self.waiting_out >= 1 or (
            self.stage0_ms > self.stage1_ms and self.idle_ms > IDLING * self.stage1_ms
        ):
            return "front-bound"
        return "mesh-bound"


def overlap_of(paces: Sequence[ChunkPace], *, left_out: int = LEFT_OUT) -> Overlap:
    counted = paces[left_out:]
    assert counted, f"{len(paces)} chunks are too few: the first {left_out} do not count"

    def median(name: str) -> float:
        return float(statistics.median(getattr(pace, name) for pace in counted))

    return Overlap(
        score=median("score"),
        stage0_ms=median("stage0_ms"),
        stage1_ms=median("stage1_ms"),
        period_ms=median("period_ms"),
        idle_ms=median("idle_ms"),
        latency_ms=median("latency_ms"),
        waiting_in=median("waiting_in"),
        waiting_out=median("waiting_out"),
    )
