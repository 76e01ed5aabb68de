"""The fleet's one address: lets people in, finds each a place, and sends them there or passes on what both sides say.

A Starlette application like the server's own, with the same gate for keys and limits, which Ray Serve runs
(`fleet/on_ray.py`). It knows the native protocol as far as its opening; all else is the replicas' business. It keeps nothing:
one that is started anew learns from the replicas who is where.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as HTTPRequest
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from millstream.client.connection import Connection
from millstream.core.client_messages import AnyClientMessage, Attach, Opening, Ping, ProtocolError, Restore, Start, View
from millstream.core.errors import MillstreamError, Overloaded, ProtocolBroken
from millstream.core.server_messages import ErrorMessage, MovedMessage, Pong, ServerMessage, WaitingMessage
from millstream.fleet.fleet import LiveFleet
from millstream.fleet.forward import Forwarder, refusal
from millstream.fleet.relay import CLOSE_AGAIN, CLOSE_NORMAL, open_link, relay_any, relay_native
from millstream.fleet.replica_link import ReplicaLink
from millstream.fleet.watching import metrics_text, status
from millstream.server.access.auth import Access, Gate, pass_of
from millstream.server.access.budgets import ClientRates, Clients
from millstream.server.headers import SafeHeaders
from millstream.server.protocol.messages import code_of, decode, encode
from millstream.serving.admission_types import Queued

SERVER_PAGE = Path(__file__).parents[1] / "server" / "web"
FLEET_PAGE = Path(__file__).parent / "web"
SUBPROTOCOL = "millstream.v1"
READY_S = 60.0
"""For a first replica to be ready, when somebody comes before that."""
OPENING_S = 30.0
ID_BYTES = 16
FORWARDED = (
    "/v1/{path:path}", "/api/{path:path}", "/openapi.json", "/upload_video", "/upload_start_frame",
    "/download_video/{path:path}",
)  # fmt: skip
"""What replicas answer over HTTP."""
RATES = ClientRates(requests=(200.0, 2000.0))
"""Of one address, which may be that of a proxy."""


def create_gateway(fleet: LiveFleet, access: Access) -> Starlette:
    """`fleet` runs for as long as the application does."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.fleet, app.state.forwarder = fleet, Forwarder(fleet)
        running = asyncio.ensure_future(fleet.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await fleet.close()
            await app.state.forwarder.close()

    page = ["/", *(f"/{path.relative_to(SERVER_PAGE)}" for path in SERVER_PAGE.rglob("*") if path.is_file())]
    fleet_page = ["/fleet", *(f"/fleet/{path.name}" for path in FLEET_PAGE.iterdir())]
    gate = Middleware(Gate, access=access, open_paths=[*page, *fleet_page, "/healthz", "/readyz"], clients=Clients(RATES))
    # the page connects to replicas, wherever they are
    headers = Middleware(SafeHeaders, connects="'self' ws: wss:")
    return Starlette(routes=_routes(), middleware=[headers, gate], lifespan=lifespan)


def _routes() -> list[BaseRoute]:
    return [
        WebSocketRoute("/v1/stream", stream),
        WebSocketRoute("/{path:path}", any_socket),
        Route("/healthz", lambda request: PlainTextResponse("ok")),
        Route("/readyz", readiness),
        Route(
            "/metrics", lambda request: Response(metrics_text(request.app.state.fleet), media_type="text/plain; version=0.0.4")
        ),
        Route("/v1/fleet", lambda request: Response(status(request.app.state.fleet), media_type="application/json")),
        Route("/fleet", lambda request: FileResponse(FLEET_PAGE / "index.html")),
        Mount("/fleet", StaticFiles(directory=FLEET_PAGE)),
        *(Route(path, forward, methods=["GET", "POST", "PATCH", "DELETE"]) for path in FORWARDED),
        Mount("/", StaticFiles(directory=SERVER_PAGE, html=True)),
    ]


async def readiness(request: HTTPRequest) -> Response:
    ready = request.app.state.fleet.ready()
    return PlainTextResponse("ready" if ready else "not ready: no replica is", status_code=200 if ready else 503)


async def forward(request: HTTPRequest) -> Response:
    forwarder: Forwarder = request.app.state.forwarder
    return await forwarder.answer(request, pass_of(request.scope).key)


async def any_socket(websocket: WebSocket) -> None:
    """Somebody who speaks another protocol."""
    fleet: LiveFleet = websocket.app.state.fleet
    key, session_id = pass_of(websocket.scope).key.name, secrets.token_urlsafe(ID_BYTES)
    try:
        asked = await fleet.price({"prompt": "-"}, session_id, key=key)
        here = await fleet.place(asked, lambda queued: None)
        await relay_any(websocket, here, here.ticket(session_id, key))
    except MillstreamError as error:
        if websocket.application_state is WebSocketState.CONNECTING:
            await websocket.send_denial_response(refusal(websocket.url.path, error))
        else:
            await websocket.close(CLOSE_AGAIN)


async def stream(websocket: WebSocket) -> None:
    offered = websocket.scope.get("subprotocols", ())
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    with suppress(WebSocketDisconnect, asyncio.TimeoutError):
        await _Visitor(websocket).run()


class _Visitor:
    """One client of the native protocol, until it is sent elsewhere or served from here."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._fleet: LiveFleet = websocket.app.state.fleet
        self._key = pass_of(websocket.scope).key
        self._model = websocket.query_params.get("model", "")
        self._saying: set[asyncio.Future[None]] = set()

    async def run(self) -> None:
        hello = await self._hello()
        if hello is None:
            await self._say(ErrorMessage(code="refused", message="no replica is ready; try again in a moment"))
            await self._websocket.close(CLOSE_AGAIN)
            return
        await self._websocket.send_text(hello)
        while (opening := await self._hear_opening()) is not None:
            try:
                name, here = await self._unless_gone(self._place(opening))
                await self._serve(opening, name, here)
                return
            except MillstreamError as error:
                await self._say(_error(error))

    async def _hello(self) -> str | None:
        """A replica's, once there is one."""
        give_up = time.monotonic() + READY_S
        while not (ready := self._fleet.ready(self._model)):
            if time.monotonic() > give_up:
                return None
            await asyncio.sleep(0.1)
        report = ready[0].report
        assert report is not None, "a replica is ready once it has reported"
        return report.hello.decode()

    async def _hear_opening(self) -> Opening | None:
        """None when the client has gone."""
        while True:
            text = await asyncio.wait_for(self._websocket.receive_text(), OPENING_S)
            try:
                message: AnyClientMessage = decode(text)
            except ProtocolError as error:
                await self._say(_error(error))
                continue
            if isinstance(message, (Start, Attach, View, Restore)):
                return message
            if isinstance(message, Ping):
                await self._say(Pong(t=message.t))
            else:
                await self._say(ErrorMessage(code="bad_state", message="say start, attach, view or restore first"))

    async def _place(self, opening: Opening) -> tuple[str, ReplicaLink]:
        """What the ticket is for, and where."""
        fleet, key = self._fleet, self._key.name
        match opening:
            case Attach(session=session_id):
                return session_id, await fleet.find(session_id, key, self._tell_position)
            case View(view=view_id):
                return view_id, await fleet.find_view(view_id)
        self._key.check_steering()
        session_id = secrets.token_urlsafe(ID_BYTES)
        ask = msgspec.to_builtins(opening) if isinstance(opening, Start) else {"prompt": "-", "wait": True}
        asked = await fleet.price(ask, session_id, key=key, model=self._model)
        return session_id, await fleet.place(asked, self._tell_position)

    async def _unless_gone(self, placing: Awaitable[tuple[str, ReplicaLink]]) -> tuple[str, ReplicaLink]:
        """Who leaves while in line gives up the place."""
        placed = asyncio.ensure_future(placing)
        leaving = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait({placed, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not placed.done():
                raise WebSocketDisconnect
            return placed.result()
        finally:
            for task in (placed, leaving):
                task.cancel()
            await asyncio.gather(placed, leaving, return_exceptions=True)

    async def _until_gone(self) -> None:
        """What a client says while it waits for its place is not for us."""
        while (await self._websocket.receive())["type"] != "websocket.disconnect":
            pass

    async def _serve(self, opening: Opening, name: str, here: ReplicaLink) -> None:
        if opening.follow:
            await self._say(MovedMessage(url=here.address.url, ticket=here.ticket(name, self._key.name)))
            await self._websocket.close(CLOSE_NORMAL)
            return

        async def open_again(url: str, ticket: str, opening: Opening) -> Connection:
            """Where it is told to go, or where the session is now."""
            if url:
                return await Connection.open(url, ticket=ticket)
            try:
                name, here = await self._place(opening)
            except MillstreamError as error:
                raise ProtocolBroken(str(error)) from None
            return await open_link(here, name, self._key.name)

        first = await open_link(here, name, self._key.name)
        await relay_native(self._websocket, opening, first, open_again)

    def _tell_position(self, queued: Queued) -> None:
        waiting = WaitingMessage(position=queued.position, expected_wait_s=queued.expected_wait_s, reason=queued.reason)
        saying = asyncio.ensure_future(self._say(waiting))
        self._saying.add(saying)
        saying.add_done_callback(self._saying.discard)

    async def _say(self, message: ServerMessage) -> None:
        await self._websocket.send_text(encode(message))


def _error(error: MillstreamError) -> ErrorMessage:
    offer = None
    if isinstance(error, Overloaded):
        offer = {"fps": error.fps} if error.fps is not None else {"wait": True} if error.can_wait else None
    return ErrorMessage(code=code_of(error, "bad_message"), message=str(error), offer=offer)
