"""The web application: which address is answered by what. Knows no model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from millstream.server import dialects, openapi, rest, webrtc
from millstream.server.auth import Access, Gate
from millstream.server.hub import Hub
from millstream.server.limits import ClientBuckets, ClientLimits
from millstream.server.metrics import CONTENT_TYPE
from millstream.server.native import stream
from millstream.server.peers import IceServer, Peers

WEB = Path(__file__).parent / "web"
HEALTH = ("/healthz", "/readyz")


@dataclass(frozen=True, kw_only=True, slots=True)
class AppConfig:
    access: Access = field(default_factory=Access)
    limits: ClientLimits = field(default_factory=ClientLimits)
    ice_servers: tuple[IceServer, ...] = ()
    """For WebRTC clients that cannot reach this machine directly."""


def create_app(make_hub: Callable[[], Hub], config: AppConfig) -> Starlette:
    """`make_hub` is called on the event loop; the application closes what it made."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        hub = app.state.hub = make_hub()
        peers = app.state.peers = Peers(config.ice_servers)
        hub.start()
        try:
            yield
        finally:
            await peers.close()
            await hub.close()

    app = Starlette(routes=_routes(), middleware=_middleware(config), lifespan=lifespan)
    app.state.limits = config.limits
    return app


def _routes() -> list[BaseRoute]:
    return [
        WebSocketRoute("/v1/stream", stream),
        *rest.routes(),
        *webrtc.routes(),
        *dialects.routes(),
        Route("/openapi.json", describe),
        Route("/metrics", measure),
        Route("/healthz", health),
        Route("/readyz", readiness),
        Mount("/", StaticFiles(directory=WEB, html=True)),
    ]


def _middleware(config: AppConfig) -> list[Middleware]:
    page = ["/", *(f"/{path.relative_to(WEB)}" for path in WEB.rglob("*") if path.is_file())]
    gate = Middleware(Gate, access=config.access, open_paths=[*page, *HEALTH], buckets=ClientBuckets())
    if not config.access.origins:
        return [gate]
    headers = ["Authorization", "Content-Type"]
    methods = ["GET", "POST", "PATCH", "DELETE"]
    return [
        Middleware(CORSMiddleware, allow_origins=sorted(config.access.origins), allow_headers=headers, allow_methods=methods),
        gate,
    ]


async def describe(request: Request) -> Response:
    return JSONResponse(openapi.schema())


async def measure(request: Request) -> Response:
    hub: Hub = request.app.state.hub
    outboxes = [viewer.outbox for station in hub.stations.values() for viewer in station.viewers]
    return Response(hub.metrics.text(hub.service.metrics(), outboxes), media_type=CONTENT_TYPE)


async def health(request: Request) -> Response:
    """The process answers."""
    return PlainTextResponse("ok")


async def readiness(request: Request) -> Response:
    """The model is warm, and its thread lives."""
    ready = request.app.state.hub.service.ready.is_set()
    return PlainTextResponse("ready" if ready else "not ready", status_code=200 if ready else 503)
