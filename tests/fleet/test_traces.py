"""One trace a session: what the gateway, the servers it was on and its ranks sent has one id."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="needs OpenTelemetry: pip install 'millstream[otel]'"
)

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from millstream.client.sync_client import connect
from millstream.core import tracing
from millstream.core.client_messages import Ask
from tests.fleet.playing import digests, small_fleet
from tests.server.serving import wait_until


def test_a_session_that_moves_is_one_trace_from_its_place_to_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = InMemorySpanExporter()
    tracer = tracing.tracer_to(memory)
    monkeypatch.setattr(tracing, "_tracer", lambda: tracer)
    with small_fleet(tmp_path) as fleet, connect(fleet.url, format="raw") as client:
        live = client.start(Ask(prompt="sea", fps=24.0))
        digests(client, 1)
        home = fleet.place_of(live.session)
        fleet.drain(home)
        wait_until(lambda: fleet.place_of(live.session) != home, "it has moved")
        digests(client, 2)
    tracer.span_processor.force_flush()
    spans = memory.get_finished_spans()
    assert {span.context.trace_id for span in spans} == {tracing.trace_id(live.session)}
    names = [span.name for span in spans]
    assert (names[0], names.count("move")) == ("place", 1)
    assert [span.attributes["index"] for span in spans if span.name == "chunk"][:3] == [0, 1, 2]
    assert all(span.end_time > span.start_time for span in spans)


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Where spans are sent to, and those that came."""
    spans: list[Any] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = ExportTraceServiceRequest()
            request.ParseFromString(
                gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            )
            for resource in request.resource_spans:
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", spans
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_every_rank_sends_its_part_of_the_trace(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "millstream",
        "generate",
        "sea",
        "--model",
        "wan-tiny",
        "--weights",
        "random",
        "--quiet",
    ]
    words += [
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--size",
        "32x48",
        "--chunks",
        "2",
        "--topology",
        "front+tp2",
    ]
    with collector() as (url, spans):
        environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [*words, "--out", str(tmp_path / "clip.mp4")], env=environment, check=True, timeout=120
        )
    ranks: defaultdict[bytes, list[int]] = defaultdict(list)
    for span in spans:
        ranks[span.trace_id] += [value.value.int_value for value in span.attributes if value.key == "rank"]
    assert [1, 1, 2, 2] in map(sorted, ranks.values()), (
        "two chunks on two ranks; warming up is another session"
    )
