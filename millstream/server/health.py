"""How the server itself does, for those who keep it running: alive, ready, measured."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import PlainTextResponse, Response

from millstream.server.protocol.endpoints import Endpoint, ServerState
from millstream.server.sessions.metrics import CONTENT_TYPE

OPEN_PATHS = ("/healthz", "/readyz")
"""That need no key."""
TEXT = "text/plain"


async def measure(server: ServerState, words: Mapping[str, str], body: None) -> Response:
    hub = server.hub
    live_sessions = server.hub.live_sessions.values()
    outboxes = [viewer.outbox for live_session in live_sessions for viewer in live_session.viewers]
    text = hub.metrics.text(
        hub.service.metrics(), outboxes, backlog=sum(live_session.backlog for live_session in live_sessions)
    )
    return Response(text, media_type=CONTENT_TYPE)


async def health(server: ServerState, words: Mapping[str, str], body: None) -> Response:
    if server.hub.service.failure is not None:
        return PlainTextResponse("the engine has failed", status_code=503)
    return PlainTextResponse("ok")


async def readiness(server: ServerState, words: Mapping[str, str], body: None) -> Response:
    trouble = server.hub.service.trouble
    return PlainTextResponse(
        f"not ready: {trouble}" if trouble else "ready", status_code=503 if trouble else 200
    )


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
