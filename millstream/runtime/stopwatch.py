"""Times named phases: by the host's clock on a CPU, by device events on a GPU, so that timing never waits.

Always on. Whose work it is (session, chunk, call) is said once per chunk with `attend_to`; the last spans are kept for
whoever wants to look, the oldest go.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from millstream.core.envelope import Envelope
from millstream.core.trace import NOBODY, Span, Work, span_label

KEPT_SPANS = 4096
"""About four hundred chunks of one session."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A span on the device whose length is not known yet."""

    name: str
    work: Work
    begin: torch.cuda.Event
    end: torch.cuda.Event


class Stopwatch:
    """Spans of the same name add up until `lap` returns them and starts over."""

    def __init__(self, device: torch.device, *, rank: int = 0, kept: int = KEPT_SPANS) -> None:
        self.rank = rank
        self.spans: deque[Span] = deque(maxlen=kept)
        """Those of the past laps and, on a CPU, of this one."""
        self.annotate = False
        """Whether a profiler that runs beside is told, too."""
        self.clock: Callable[[], float] = time.perf_counter
        """Of the host, in seconds."""
        self._on_gpu = device.type == "cuda"
        self._work = NOBODY
        self._phases_ms: dict[str, float] = {}
        self._recorded: list[_Recorded] = []
        self._lap_begun_ms = 0.0

    def attend_to(self, envelope: Envelope) -> None:
        """Spans from now on are of this chunk. Calls that several chunks share go under the first of them."""
        self._work = Work(session=envelope.session_id, chunk=envelope.chunk_index, call=envelope.call_id)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        with torch.profiler.record_function(span_label(name, self._work)) if self.annotate else nullcontext():
            if self._on_gpu:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                if not self._recorded:
                    self._lap_begun_ms = 1e3 * self.clock()
                begin.record()
                yield
                end.record()
                self._recorded.append(_Recorded(name, self._work, begin, end))
            else:
                begun = self.clock()
                yield
                self._keep(name, self._work, 1e3 * begun, 1e3 * (self.clock() - begun))

    def lap(self) -> dict[str, float]:
        """Milliseconds per phase since the last lap. Waits for the device if its last span has not ended."""
        if self._recorded:
            self._recorded[-1].end.synchronize()
            first = self._recorded[0].begin
            for span in self._recorded:
                begin_ms = self._lap_begun_ms + first.elapsed_time(span.begin)
                self._keep(span.name, span.work, begin_ms, span.begin.elapsed_time(span.end))
        phases, self._phases_ms, self._recorded = self._phases_ms, {}, []
        return phases

    def _keep(self, name: str, work: Work, begin_ms: float, ms: float) -> None:
        self._phases_ms[name] = self._phases_ms.get(name, 0.0) + ms
        self.spans.append(Span(name=name, work=work, rank=self.rank, begin_ms=begin_ms, ms=ms))
