"""The web application: which address is answered by what. Knows no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Mount, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from millstream.server import dialects, health
from millstream.server.access.auth import Access, Gate
from millstream.server.access.budgets import ClientRates, Clients
from millstream.server.access.limits import ClientLimits
from millstream.server.headers import SafeHeaders
from millstream.server.protocol import openapi, outputs, rest, videos, webrtc
from millstream.server.protocol.branching import BRANCHING
from millstream.server.protocol.conversation import Conversation
from millstream.server.protocol.endpoints import Endpoint, ServerState
from millstream.server.protocol.nowhere import answer_nowhere, refuse_socket
from millstream.server.protocol.osc import OscListener, OscPort
from millstream.server.sessions.hub import SessionHub
from millstream.server.transport.peers import IceServer, Peers
from millstream.server.transport.tasks import stop_all
from millstream.server.transport.websocket_loop import converse

WEB = Path(__file__).parent / "web"


@dataclass(frozen=True, kw_only=True, slots=True)
class AppConfig:
    access: Access = field(default_factory=Access)
    limits: ClientLimits = field(default_factory=ClientLimits)
    """Limits of one connection."""
    rates: ClientRates = field(default_factory=ClientRates)
    """Rates of one client, whatever it connects by."""
    ice_servers: tuple[IceServer, ...] = ()
    """ICE servers for WebRTC clients that cannot reach this machine directly."""
    routes: tuple[BaseRoute, ...] = ()
    """Routes of the program that runs this server as one of several."""
    osc: OscPort | None = None
    """Where it can be steered by OSC."""


def create_app(make_hub: Callable[[], SessionHub], config: AppConfig) -> Starlette:
    """`make_hub` is called on the event loop; the application closes what it made."""

    clients = Clients(config.rates)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        hub = make_hub()
        peers = Peers(config.ice_servers)
        app.state.server = ServerState(hub=hub, peers=peers, limits=config.limits, clients=clients)
        hub.start()
        listening = (
            [asyncio.ensure_future(OscListener(config.osc, hub).run())] if config.osc is not None else []
        )
        try:
            yield
        finally:
            await stop_all(listening)
            await peers.close(hub.grace.half_s())
            await hub.close()

    return Starlette(
        routes=[*config.routes, *_routes()],
        middleware=_middleware(config, clients),
        exception_handlers={404: answer_nowhere, 405: answer_nowhere},
        lifespan=lifespan,
    )


def _routes() -> list[BaseRoute]:
    sockets, theirs = dialects.routes()
    endpoints = [*rest.ENDPOINTS, *BRANCHING, *outputs.endpoints(), *webrtc.ENDPOINTS, *videos.endpoints()]
    endpoints += [*theirs, *health.ENDPOINTS]

    async def stream(websocket: WebSocket) -> None:
        await converse(websocket, Conversation)

    async def describe(server: ServerState, words: Mapping[str, str], body: None) -> dict[str, Any]:
        return description

    endpoints.append(Endpoint(method="GET", path="/openapi.json", does=describe, says="This description."))
    description = openapi.schema(endpoints)  # once: it takes as long as a thousand other answers
    return [
        WebSocketRoute("/v1/stream", stream),
        *(endpoint.route() for endpoint in endpoints),
        *sockets,
        WebSocketRoute("/{path:path}", refuse_socket),
        Mount("/", StaticFiles(directory=WEB, html=True)),
    ]


def _middleware(config: AppConfig, clients: Clients) -> list[Middleware]:
    page = ["/", *(f"/{path.relative_to(WEB)}" for path in WEB.rglob("*") if path.is_file())]
    gate = Middleware(Gate, access=config.access, open_paths=[*page, *health.OPEN_PATHS], clients=clients)
    if not config.access.origins:
        return [Middleware(SafeHeaders), gate]
    headers = ["Authorization", "Content-Type"]
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return [
        Middleware(SafeHeaders),
        Middleware(
            CORSMiddleware,
            allow_origins=sorted(config.access.origins),
            allow_headers=headers,
            allow_methods=methods,
        ),
        gate,
    ]
