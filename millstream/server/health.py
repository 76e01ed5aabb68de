"""How the server itself does, for those who keep it running: alive, ready, measured."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import PlainTextResponse, Response

from millstream.server.endpoints import Desk, Endpoint
from millstream.server.metrics import CONTENT_TYPE

OPEN_PATHS = ("/healthz", "/readyz")
"""That need no key."""
TEXT = "text/plain"


async def measure(desk: Desk, words: Mapping[str, str], body: None) -> Response:
    hub, stations = desk.hub, desk.hub.stations.values()
    outboxes = [viewer.outbox for station in stations for viewer in station.viewers]
    text = hub.metrics.text(hub.service.metrics(), outboxes, backlog=sum(station.backlog for station in stations))
    return Response(text, media_type=CONTENT_TYPE)


async def health(desk: Desk, words: Mapping[str, str], body: None) -> Response:
    if desk.hub.service.failure is not None:
        return PlainTextResponse("the engine has failed", status_code=503)
    return PlainTextResponse("ok")


async def readiness(desk: Desk, words: Mapping[str, str], body: None) -> Response:
    trouble = desk.hub.service.trouble
    return PlainTextResponse(f"not ready: {trouble}" if trouble else "ready", status_code=503 if trouble else 200)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/healthz",
        does=health,
        media_type=TEXT,
        says="Whether the process lives and can still serve: 200 or 503.",
    ),
    Endpoint(
        method="GET",
        path="/readyz",
        does=readiness,
        media_type=TEXT,
        says="Whether the model is warm, and its thread and mesh live: 200, or 503 and why not.",
    ),
    Endpoint(method="GET", path="/metrics", does=measure, media_type=TEXT, says="Figures for Prometheus."),
)
