"""The web application: which address is answered by what. Knows no model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from millstream.server.hub import Hub
from millstream.server.limits import ClientLimits
from millstream.server.native import stream

WEB = Path(__file__).parent / "web"


@dataclass(frozen=True, kw_only=True, slots=True)
class AppConfig:
    limits: ClientLimits = field(default_factory=ClientLimits)


def create_app(make_hub: Callable[[], Hub], config: AppConfig) -> Starlette:
    """`make_hub` is called on the event loop; the application closes what it made."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        hub = app.state.hub = make_hub()
        hub.start()
        try:
            yield
        finally:
            await hub.close()

    routes: list[Route | Mount | WebSocketRoute] = [
        WebSocketRoute("/v1/stream", stream),
        Route("/healthz", health),
        Route("/readyz", readiness),
    ]
    if WEB.is_dir():
        routes.append(Mount("/", StaticFiles(directory=WEB, html=True)))
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.limits = config.limits
    return app


async def health(request: Request) -> Response:
    """The process answers."""
    return PlainTextResponse("ok")


async def readiness(request: Request) -> Response:
    """The model is warm, and its thread lives."""
    ready = request.app.state.hub.service.ready.is_set()
    return PlainTextResponse("ready" if ready else "not ready", status_code=200 if ready else 503)
