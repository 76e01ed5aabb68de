"""Traces for OpenTelemetry, one a session, from the gateway to every rank. Optional: `pip install
'millstream[otel]'`.

A trace's id is made of the session's, which everybody on its way knows: the gateway, each server that has it,
its front and its ranks. So nothing is carried from one to the next, and a session that moves or comes back
after a death is the same trace. Spans are sent where `OTEL_EXPORTER_OTLP_ENDPOINT` says; without it nothing
happens. Loads nothing until then.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FLUSH_MS = 2000
Attribute = str | int | float


def trace_id(session_id: str) -> int:
    """16 bytes. A session's own id steers it, and cannot be told from this."""
    return int.from_bytes(
        hashlib.blake2b(session_id.encode(), digest_size=16, person=b"trace").digest(), "big"
    )


def record(name: str, session_id: str, seconds: float, **attributes: Attribute) -> None:
    """Something that a session went through, which is over now and took so long."""
    tracer = _tracer()
    if tracer is None:
        return
    from opentelemetry import trace

    whole = trace_id(session_id)
    # everything hangs from one span that nobody sends: whoever came first may be gone before the session is
    root = trace.SpanContext(
        whole,
        whole & (2**64 - 1) or 1,
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    now = time.time_ns()
    span = tracer.start_span(
        name,
        trace.set_span_in_context(trace.NonRecordingSpan(root)),
        attributes=attributes,
        start_time=now - round(1e9 * seconds),
    )
    span.end(now)


@contextmanager
def recorded(name: str, session_ids: Sequence[str], **attributes: Attribute) -> Iterator[None]:
    """Record the block as a span for each of these sessions. A block that raises is not recorded."""
    begun = time.perf_counter()
    yield
    for session_id in session_ids:
        record(name, session_id, time.perf_counter() - begun, **attributes)


def flush() -> None:
    """Send what is left, for a process that ends without another word."""
    tracer = _tracer()
    if tracer is not None:
        tracer.span_processor.force_flush(FLUSH_MS)


@cache
def _tracer() -> Any:
    """None where nobody wants to know."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return tracer_to(OTLPSpanExporter())
    except ModuleNotFoundError as missing:
        log.warning(
            "%s is set, and %s is missing: pip install 'millstream[otel]'", ENDPOINTS[0], missing.name
        )
        return None


def tracer_to(exporter: Any) -> Any:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(
        resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "millstream")})
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider.get_tracer("millstream")
