"""Metrics for Prometheus, in a registry of our own. Figures of single sessions are summed up: their ids are
no labels.

Counters and histograms are fed as chunks pass; the rest is read on request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millstream.server.sessions.outbox import Outbox
from millstream.serving.service_metrics import ServiceMetrics
from millstream.session.chunk import Chunk

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.chunks = self._count("millstream_chunks", "Chunks that were shown.")
        self.frames = self._count("millstream_frames", "Frames in them.")
        self.misses = self._count(
            "millstream_deadline_misses", "Chunks that came after their viewer had run dry."
        )
        self.late_seconds = self._count(
            "millstream_late_seconds", "How long viewers had run dry when chunks came."
        )
        self.chunk_seconds = self._times("millstream_chunk_seconds", "From plan to frames.")
        self.phase_seconds = self._times("millstream_phase_seconds", "Where a chunk's time went.", "phase")
        self.first_frame_seconds = self._times(
            "millstream_first_frame_seconds", "From opening a session to its first frames."
        )
        self.control_seconds = self._times(
            "millstream_control_seconds", "From a control to the chunk it first shows in."
        )
        self.key_seconds = self._times(
            "millstream_key_seconds",
            "From keys, mouse or gamepad to the chunk that shows them being handed to its viewers.",
        )

    def chunk(self, chunk: Chunk, *, first_s: float | None) -> None:
        """A chunk has come; `first_s` after its session was opened where it is the first."""
        self.chunks.inc()
        self.frames.inc(chunk.num_frames)
        self.chunk_seconds.observe(chunk.timing.total_ms / 1000)
        for phase, ms in chunk.timing.phases_ms.items():
            self.phase_seconds.labels(phase).observe(ms / 1000)
        if chunk.late_s > 0:
            self.misses.inc()
            self.late_seconds.inc(chunk.late_s)
        if first_s is not None:
            self.first_frame_seconds.observe(first_s)

    @property
    def num_misses(self) -> int:
        return int(next(iter(self.misses.collect())).samples[0].value)

    def text(self, service: ServiceMetrics, outboxes: Iterable[Outbox], *, backlog: int) -> bytes:
        """Everything, as it is now; `backlog` is what waits to be encoded."""
        momentary = CollectorRegistry()
        momentary.register(_Now(service, list(outboxes), backlog))
        return generate_latest(self.registry) + generate_latest(momentary)

    def _count(self, name: str, means: str) -> Counter:
        return Counter(name, means, registry=self.registry)

    def _times(self, name: str, means: str, *labels: str) -> Histogram:
        return Histogram(name, means, labels, buckets=SECONDS, registry=self.registry)


class _Now(Collector):
    """Gauges, from the service and the outboxes."""

    def __init__(self, service: ServiceMetrics, outboxes: list[Outbox], backlog: int) -> None:
        self._service = service
        self._outboxes = outboxes
        self._backlog = backlog

    def collect(self) -> Iterator[Metric]:
        scheduler = self._service.scheduler
        admission = self._service.admission
        continuity = [each.continuity for each in scheduler.sessions]
        depths = [len(outbox) for outbox in self._outboxes]
        for name, means, value in (
            ("sessions", "Sessions with a place on the device.", admission.admitted),
            ("sessions_waiting", "Sessions in line.", admission.waiting),
            ("sessions_refused_total", "Sessions turned away since the start.", admission.refused),
            (
                "sessions_halted",
                "Sessions that stand still.",
                sum(each.halted for each in scheduler.sessions),
            ),
            ("sessions_ready", "Sessions that could run now and wait for the device.", scheduler.ready),
            ("promised_share", "Share of the device that is promised.", admission.promised or 0.0),
            (
                "utilisation",
                "What running sessions ask of the device; above 1 it is overloaded.",
                scheduler.utilisation,
            ),
            ("busy_seconds_total", "Device seconds of all turns.", scheduler.busy_s),
            (
                "continuity_min",
                "Played over played and stalled, of the session that fares worst.",
                min(continuity, default=1.0),
            ),
            (
                "session_memory_bytes",
                "Keys, values and prompts of all sessions on the device.",
                self._service.session_bytes,
            ),
            (
                "device_memory_bytes",
                "Everything allocated on the device; 0 on a CPU.",
                self._service.device_bytes,
            ),
            ("reserved_memory_bytes", "What admission has set aside for them.", admission.memory_bytes),
            ("encode_backlog", "Chunks and notices that wait to be encoded and passed on.", self._backlog),
            ("viewers", "Clients that watch.", len(depths)),
            ("outbox_items", "What waits to be sent, to all of them.", sum(depths)),
            ("outbox_items_max", "What waits for the slowest.", max(depths, default=0)),
            (
                "pictures_dropped",
                "Pictures left out for clients that are here now.",
                sum(o.dropped for o in self._outboxes),
            ),
            ("tasks", "Tasks on the event loop.", len(asyncio.all_tasks())),
            ("threads", "Threads.", threading.active_count()),
        ):
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"millstream_{name}", means, value=float(value))
