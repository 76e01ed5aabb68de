"""Times named phases: by the host's clock on a CPU, by device events on a GPU, so that timing never waits.

Always on. The session, chunk and call that spans belong to are set once per chunk with `attend_to`; the last
spans are kept to be read, the oldest go.
"""

from __future__ import annotations

import math
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
        """Spans of the past laps and, on a CPU, of this one."""
        self.annotate = False
        """True if spans are reported to a profiler that runs beside, too."""
        self.clock: Callable[[], float] = time.perf_counter
        """Clock of the host, in seconds."""
        self._on_gpu = device.type == "cuda"
        self._work = NOBODY
        self._phases_ms: dict[tuple[int, str], float] = {}
        """Milliseconds, by call and phase."""
        self._recorded: list[_Recorded] = []
        self._free: list[torch.cuda.Event] = []
        """Events of spans that ended, for new ones: as many as were ever under way at once."""
        self._origin: torch.cuda.Event | None = None
        """Where the device's clock and the host's are held together: a span that has ended, or the first."""
        self._origin_ms = 0.0

    def attend_to(self, envelope: Envelope) -> None:
        """Spans from now on are of this chunk. Calls that several chunks share go under the first of them."""
        self._work = Work(session=envelope.session_id, chunk=envelope.chunk_index, call=envelope.call_id)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        with torch.profiler.record_function(span_label(name, self._work)) if self.annotate else nullcontext():
            if self._on_gpu:
                begin = self._event()
                end = self._event()
                if not self._recorded:
                    self._origin, self._origin_ms = begin, 1e3 * self.clock()
                begin.record()
                yield
                end.record()
                self._recorded.append(_Recorded(name, self._work, begin, end))
            else:
                begun = self.clock()
                yield
                self._keep(name, self._work, 1e3 * begun, 1e3 * (self.clock() - begun))

    def lap(self, of: Envelope | None = None) -> dict[str, float]:
        """Return the milliseconds per phase since the last lap, of all work or of one chunk; what was begun
        after that chunk goes on.

        Waits for the device if the last span that counts has not ended. Chunks before it that were not asked
        for are forgotten.
        """
        last = math.inf if of is None else of.call_id
        ended = [span for span in self._recorded if span.work.call <= last]
        self._recorded = [span for span in self._recorded if span.work.call > last]
        if ended:
            ended[-1].end.synchronize()
            for span in ended:
                self._keep(span.name, span.work, self._begin_ms(span), span.begin.elapsed_time(span.end))
            self._origin, self._origin_ms = ended[-1].begin, self._begin_ms(ended[-1])
            self._free += [
                event for span in ended for event in (span.begin, span.end) if event is not self._origin
            ]
        phases: dict[str, float] = {}
        for call, name in [key for key in self._phases_ms if key[0] <= last]:
            ms = self._phases_ms.pop((call, name))
            if of is None or call == last:
                phases[name] = phases.get(name, 0.0) + ms
        return phases

    def _event(self) -> torch.cuda.Event:
        return self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)

    def _begin_ms(self, span: _Recorded) -> float:
        """Return when it began, in milliseconds of the host's clock."""
        assert self._origin is not None, "a span that was recorded has an origin before it"
        return self._origin_ms + float(self._origin.elapsed_time(span.begin))

    def _keep(self, name: str, work: Work, begin_ms: float, ms: float) -> None:
        key = work.call, name
        self._phases_ms[key] = self._phases_ms.get(key, 0.0) + ms
        self.spans.append(Span(name=name, work=work, rank=self.rank, begin_ms=begin_ms, ms=ms))
