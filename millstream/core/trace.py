"""Where a chunk's time went: named spans in milliseconds, and totals over a bounded run.

How a span is measured (host clock or device events) is `runtime/stopwatch.py`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkTiming:
    """One chunk: the wall time from plan to frames, and the phases inside it."""

    total_ms: float
    phases_ms: Mapping[str, float]

    @property
    def other_ms(self) -> float:
        """What no phase accounts for."""
        return max(0.0, self.total_ms - sum(self.phases_ms.values()))


@dataclass(slots=True)
class Totals:
    """Sums over all chunks seen; its size does not grow with their number."""

    chunks: int = 0
    frames: int = 0
    total_ms: float = 0.0
    phases_ms: dict[str, float] = field(default_factory=dict)

    def add(self, timing: ChunkTiming, frames: int) -> None:
        self.chunks += 1
        self.frames += frames
        self.total_ms += timing.total_ms
        for name, ms in (*timing.phases_ms.items(), ("other", timing.other_ms)):
            self.phases_ms[name] = self.phases_ms.get(name, 0.0) + ms

    @property
    def fps(self) -> float:
        return 1000.0 * self.frames / self.total_ms if self.total_ms else 0.0
