"""Where time went: named spans with whose work they were, a chunk's phases, and totals over a bounded run.

How a span is measured (host clock or device events) is `generation/stopwatch.py`'s business; what can be read
from many of them is `profiler/`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "millstream."
"""Beginning of our spans' names in a profiler's trace."""
_LABEL = re.compile(re.escape(PREFIX) + r"(\w+)(?: session=(\S*) chunk=(-?\d+) call=(-?\d+))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Whose chunk is being worked on. `call` is the envelope's call id: the same on every rank."""

    session: str = ""
    chunk: int = -1
    call: int = -1


NOBODY = Work()


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One stretch of one phase. `begin_ms` is by a clock of the process and means something beside its others
    only."""

    name: str
    work: Work
    rank: int
    begin_ms: float
    ms: float


def span_label(name: str, work: Work) -> str:
    """How a span is called in a trace that knows only names."""
    return f"{PREFIX}{name} session={work.session} chunk={work.chunk} call={work.call}"


def parse_label(label: str) -> tuple[str, Work] | None:
    """The other way round; None if it is not one of ours."""
    found = _LABEL.fullmatch(label)
    if found is None:
        return None
    name, session, chunk, call = found.groups()
    return name, Work(session=session, chunk=int(chunk), call=int(call)) if chunk is not None else NOBODY


def chrome_trace(spans: Iterable[Span], *, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Spans as a Chrome trace: a process per rank, a thread per session. Times in microseconds."""
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": span_label(span.name, span.work),
            "pid": span.rank,
            "tid": span.work.session or "nobody",
            "ts": 1e3 * span.begin_ms,
            "dur": 1e3 * span.ms,
        }
        for span in spans
    ]
    return {"millstream": dict(metadata), "traceEvents": events}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkTiming:
    """One chunk: the wall time from plan to frames, with the commit of the chunk before if it was put off,
    and the phases inside it."""

    total_ms: float
    phases_ms: Mapping[str, float]

    @property
    def other_ms(self) -> float:
        """Milliseconds that no phase accounts for."""
        return max(0.0, self.total_ms - sum(self.phases_ms.values()))


@dataclass(slots=True)
class Totals:
    """Sums over all chunks seen; its size does not grow with their number."""

    chunks: int = 0
    frames: int = 0
    total_ms: float = 0.0
    phases_ms: dict[str, float] = field(default_factory=dict)

    def add(self, timing: ChunkTiming, frames: int) -> None:
        assert frames >= 0, f"a chunk of {frames} frames"
        self.chunks += 1
        self.frames += frames
        self.total_ms += timing.total_ms
        for name, ms in (*timing.phases_ms.items(), ("other", timing.other_ms)):
            self.phases_ms[name] = self.phases_ms.get(name, 0.0) + ms

    @property
    def fps(self) -> float:
        return 1000.0 * self.frames / self.total_ms if self.total_ms else 0.0
