"""The fleet's one address: lets people in, finds each a place, and sends them there or passes on what both
sides say.

A Starlette application like the server's own, with the same gate for keys and limits, which Ray Serve runs
(`fleet/on_ray.py`). It knows the native protocol as far as its opening; all else is the replicas' business.
It keeps nothing: one that is started anew learns from the replicas who is where.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as HTTPRequest
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from millstream.client.connection import Connection
from millstream.core.client_messages import (
    Attach,
    Opening,
    Ping,
    ProtocolError,
    Restore,
    Start,
    View,
)
from millstream.core.errors import MillstreamError, Overloaded, ProtocolBroken
from millstream.core.server_messages import ErrorMessage, MovedMessage, Pong, ServerMessage, WaitingMessage
from millstream.fleet.fleet import LiveFleet
from millstream.fleet.forward import ANY_SESSION, Forwarder, asked_of, check_path, new_session_id, refusal
from millstream.fleet.membership import RATES
from millstream.fleet.relay import (
    CLOSE_AGAIN,
    CLOSE_NORMAL,
    CLOSE_TOO_LARGE,
    TooLarge,
    close,
    decode_apart,
    next_message,
    open_link,
    relay_any,
    relay_native,
)
from millstream.fleet.replica_link import ReplicaLink
from millstream.fleet.tickets import Right
from millstream.fleet.watching import figures, metrics_text, status
from millstream.server import dialects
from millstream.server.access.auth import CLOSE_POLICY, Access, Gate, pass_of
from millstream.server.access.budgets import Clients
from millstream.server.access.limits import ClientLimits, TokenBucket
from millstream.server.access.shares import client_at
from millstream.server.headers import SafeHeaders
from millstream.server.protocol.messages import code_of, encode
from millstream.server.protocol.nowhere import answer_nowhere, refuse_socket
from millstream.server.transport.tasks import stop_all
from millstream.serving.admission_types import Queued

SERVER_PAGE = Path(__file__).parents[1] / "server" / "web"
FLEET_PAGE = Path(__file__).parent / "web"
SUBPROTOCOL = "millstream.v1"
READY_S = 60.0
"""For a first replica to be ready, when a client comes before that."""
OPENING_S = 30.0
"""For a client to have said what it wants; then it is let go, as by a server."""
LIMITS = ClientLimits()
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
FORWARDED = (
    "/v1/{path:path}", "/api/{path:path}", "/openapi.json", "/upload_video", "/upload_start_frame",
    "/download_video/{path:path}",
)  # fmt: skip
"""Paths that replicas answer over HTTP."""


def create_gateway(fleet: LiveFleet, access: Access) -> Starlette:
    """`fleet` runs for as long as the application does."""
    forwarder = Forwarder(fleet)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.fleet = fleet
        running = asyncio.ensure_future(fleet.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await fleet.close()
            await forwarder.close()

    page = ["/", *(f"/{path.relative_to(SERVER_PAGE)}" for path in SERVER_PAGE.rglob("*") if path.is_file())]
    fleet_page = ["/fleet", *(f"/fleet/{path.name}" for path in FLEET_PAGE.iterdir())]
    gate = Middleware(
        Gate, access=access, open_paths=[*page, *fleet_page, "/healthz", "/readyz"], clients=Clients(RATES)
    )
    # the page connects to replicas, wherever they are
    headers = Middleware(SafeHeaders, connects="'self' ws: wss:")
    return Starlette(
        routes=_routes(forwarder),
        middleware=[headers, gate],
        exception_handlers={404: answer_nowhere, 405: answer_nowhere},
        lifespan=lifespan,
    )


def _routes(forwarder: Forwarder) -> list[BaseRoute]:
    sockets, _ = dialects.routes()
    theirs = [WebSocketRoute(each.path, any_socket) for each in sockets if isinstance(each, WebSocketRoute)]
    return [
        WebSocketRoute("/v1/stream", stream),
        *theirs,
        WebSocketRoute("/{path:path}", refuse_socket),
        Route("/healthz", lambda request: PlainTextResponse("ok")),
        Route("/readyz", readiness),
        Route(
            "/metrics",
            lambda request: Response(
                metrics_text(request.app.state.fleet), media_type="text/plain; version=0.0.4"
            ),
        ),
        Route("/v1/fleet", show_status),
        Route("/fleet", lambda request: FileResponse(FLEET_PAGE / "index.html")),
        Mount("/fleet", StaticFiles(directory=FLEET_PAGE)),
        *(Route(path, forwarder, methods=METHODS) for path in FORWARDED),
        Mount("/", StaticFiles(directory=SERVER_PAGE, html=True)),
    ]


async def readiness(request: HTTPRequest) -> Response:
    ready = request.app.state.fleet.ready()
    return PlainTextResponse(
        "ready" if ready else "not ready: no replica is", status_code=200 if ready else 503
    )


async def show_status(request: HTTPRequest) -> Response:
    fleet: LiveFleet = request.app.state.fleet
    shown = figures(fleet) if pass_of(request.scope).key.read_only else status(fleet)
    return Response(shown, media_type="application/json")


async def any_socket(websocket: WebSocket) -> None:
    """A client of another protocol."""
    fleet: LiveFleet = websocket.app.state.fleet
    key = pass_of(websocket.scope).key
    session_id = new_session_id()
    try:
        key.check_steering()
        check_path(websocket.scope["path"])
        asked = await fleet.price(ANY_SESSION, session_id, key=key.name)
        here = await fleet.place(asked, lambda queued: None)
        ticket = here.ticket("own", session_id, key=key.name, client=client_at(websocket.scope.get("client")))
        await relay_any(websocket, here, ticket)
    except WebSocketDisconnect:
        pass
    except MillstreamError as error:
        if websocket.application_state is WebSocketState.CONNECTING:
            await websocket.send_denial_response(refusal(websocket.scope["path"], error))
        else:
            await close(websocket, CLOSE_AGAIN)
    finally:
        fleet.give_back(session_id)


async def stream(websocket: WebSocket) -> None:
    offered = websocket.scope.get("subprotocols", ())
    try:
        await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        await _Visitor(websocket).run()
    except WebSocketDisconnect:
        pass
    except TooLarge:
        await close(websocket, CLOSE_TOO_LARGE)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Admitted:
    """Where a client is let in, and for what."""

    here: ReplicaLink
    right: Right
    name: str
    """A session's, or a view link."""


class _Visitor:
    """One client of the native protocol, until it is sent elsewhere or served from here."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._fleet: LiveFleet = websocket.app.state.fleet
        self._key = pass_of(websocket.scope).key
        self._client = client_at(websocket.scope.get("client"))
        self._messages = TokenBucket(LIMITS.messages_per_s, LIMITS.messages_per_s * LIMITS.burst_s)
        self._refusals = 0
        """Number of messages refused in a row; at most `LIMITS.max_refusals`."""
        self._placed: list[str] = []
        """New sessions that were given a place."""
        self._model = websocket.query_params.get("model", "")
        self._saying: set[asyncio.Future[None]] = set()

    async def run(self) -> None:
        hello = await self._hello()
        if hello is None:
            await self._say(
                ErrorMessage(code="refused", message="no replica is ready; try again in a moment")
            )
            await close(self._websocket, CLOSE_AGAIN)
            return
        await self._websocket.send_text(hello)
        while (opening := await self._hear_opening()) is not None:
            try:
                await self._serve(opening, await self._unless_gone(self._place(opening)))
                return
            except MillstreamError as error:
                await self._refuse(error)
            finally:
                self._give_back()
        await close(self._websocket, CLOSE_POLICY)

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
        """None when the client is let go, which said nothing that opens, for too long or too often."""
        try:
            async with asyncio.timeout(OPENING_S):
                while self._refusals <= LIMITS.max_refusals:
                    said = await next_message(self._websocket)
                    if said is None:
                        raise WebSocketDisconnect
                    try:
                        message = await self._read(said)
                    except MillstreamError as error:
                        await self._refuse(error)
                        continue
                    if message is not None:
                        return message
        except TimeoutError:
            await self._say(
                ErrorMessage(code="bad_state", message=f"nothing was asked for within {OPENING_S:g} s")
            )
        return None

    async def _read(self, said: str | bytes) -> Opening | None:
        """None where it opens nothing and is answered already."""
        self._messages.spend("messages")
        if isinstance(said, bytes):
            raise ProtocolError("bad_state", "say start, attach, view or restore first")
        LIMITS.check_message(said)
        message = await decode_apart(said)
        if isinstance(message, (Start, Attach, View, Restore)):
            return message
        if not isinstance(message, Ping):
            raise ProtocolError("bad_state", "say start, attach, view or restore first")
        self._refusals = 0
        self._say_soon(Pong(t=message.t))
        return None

    async def _refuse(self, error: MillstreamError) -> None:
        self._refusals += 1
        await self._say(_error(error))

    async def _place(self, opening: Opening) -> _Admitted:
        fleet = self._fleet
        key = self._key.name
        match opening:
            case Attach(session=session_id):
                return _Admitted(
                    here=await fleet.find(session_id, key, self._tell_position), right="own", name=session_id
                )
            case View(view=view_id):
                return _Admitted(here=await fleet.find_view(view_id), right="view", name=view_id)
        self._key.check_steering()
        session_id = new_session_id()
        ask = asked_of(opening) if isinstance(opening, Start) else structs.replace(ANY_SESSION, wait=True)
        asked = await fleet.price(ask, session_id, key=key, model=self._model)
        here = await fleet.place(asked, self._tell_position)
        self._placed.append(session_id)
        return _Admitted(here=here, right="own", name=session_id)

    def _give_back(self) -> None:
        """Places that no session came to."""
        for session_id in self._placed:
            self._fleet.give_back(session_id)
        self._placed.clear()

    async def _unless_gone(self, placing: Awaitable[_Admitted]) -> _Admitted:
        """Wait for the place. A client that leaves while in line gives it up: raises
        `WebSocketDisconnect`."""
        placed = asyncio.ensure_future(placing)
        leaving = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait({placed, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not placed.done() or leaving.done():
                raise WebSocketDisconnect
            return placed.result()
        finally:
            await stop_all([placed, leaving])

    async def _until_gone(self) -> None:
        """Wait until the client disconnects. Messages that it sends while it waits for its place are
        ignored."""
        while (await self._websocket.receive())["type"] != "websocket.disconnect":
            pass

    async def _serve(self, opening: Opening, place: _Admitted) -> None:
        if opening.follow:
            ticket = place.here.ticket(place.right, place.name, key=self._key.name)
            await self._say(MovedMessage(url=place.here.address.url, ticket=ticket))
            self._placed.clear()  # it is on its way there
            await close(self._websocket, CLOSE_NORMAL)
            return

        async def open_again(url: str, ticket: str, opening: Opening) -> Connection:
            """Where it is told to go, or where the session is now."""
            if url:
                return await Connection.open(url, ticket=ticket)
            try:
                return await self._link(await self._place(opening))
            except MillstreamError as error:
                raise ProtocolBroken(str(error)) from None

        await relay_native(self._websocket, opening, await self._link(place), open_again)

    async def _link(self, place: _Admitted) -> Connection:
        """To a replica, which counts the client as if it had come by itself."""
        ticket = place.here.ticket(place.right, place.name, key=self._key.name, client=self._client)
        return await open_link(place.here, ticket)

    def _tell_position(self, queued: Queued) -> None:
        self._say_soon(
            WaitingMessage(
                position=queued.position, expected_wait_s=queued.expected_wait_s, reason=queued.reason
            )
        )

    def _say_soon(self, message: ServerMessage) -> None:
        async def say() -> None:
            with suppress(WebSocketDisconnect, RuntimeError):  # it may have gone meanwhile
                await self._say(message)

        saying = asyncio.ensure_future(say())
        self._saying.add(saying)
        saying.add_done_callback(self._saying.discard)

    async def _say(self, message: ServerMessage) -> None:
        if self._websocket.application_state is not WebSocketState.CONNECTED:
            raise WebSocketDisconnect
        await self._websocket.send_text(encode(message))


def _error(error: MillstreamError) -> ErrorMessage:
    offer = None
    if isinstance(error, Overloaded):
        offer = {"fps": error.fps} if error.fps is not None else {"wait": True} if error.can_wait else None
    return ErrorMessage(code=code_of(error, "bad_message"), message=str(error), offer=offer)
