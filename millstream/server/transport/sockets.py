"""Listening, and letting go of connections that do not let go of us.

A peer that stopped reading keeps a closing connection open for as long as something waits to be sent to it.
Here such a connection is cut a moment after it should have closed. One that connects and says nothing, never
comes to the end of a request's head or does not take its answer is cut too: connections are counted, and it
would take somebody's.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import uvicorn
from h11 import IDLE, SEND_RESPONSE, Request
from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from millstream.core.errors import ConfigError
from millstream.server.transport.frames import MeteredConnection
from millstream.server.transport.listener import Listener

LINGER_S = 5.0
REQUEST_S = 30.0
"""For the head of the next request on a connection."""
TAKE_S = 30.0
"""For a client to take what was written to it, some of it at least."""
BACKLOG = 128


class TimeoutHTTP(H11Protocol):
    """uvicorn's own, with an end to waiting for a request or for an answer to be taken."""

    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(TAKE_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_stall()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._patience.cancel()
        self._expect_request()

    def send_400_response(self, msg: str) -> None:
        """Once: the request under way, if there is one, is not answered too, and an answer that has begun is
        cut off."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (IDLE, SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def handle_websocket_upgrade(self, event: Request) -> None:
        self._patience.cancel()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        self._end_stall()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        self._patience = self.loop.call_later(REQUEST_S, self._hang_up_after, self.cycle)

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()

    def _hang_up_after(self, last: RequestResponseCycle | None) -> None:
        """Unless another request has begun."""
        if self.cycle is last:
            self.transport.abort()


class ImpatientWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's own, with an end to waiting and budgets for what it parses (`server/transport/frames.py`)."""

    conn: MeteredConnection

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = MeteredConnection(max_size=config.ws_max_size, logger=self.logger)

    async def send(self, message: ASGISendEvent) -> None:
        await self.writable.wait()  # before the question, as much can happen meanwhile
        if (
            self.close_sent
        ):  # the client was sent away below the application, which may not have heard of it yet
            raise ClientDisconnected
        await super().send(message)
        self.handshake_complete |= (
            self.close_sent
        )  # a refusal answers the handshake too; without this it is logged as an error

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:
            self.loop.call_later(LINGER_S, self.transport.abort)


class GracefulServer(uvicorn.Server):
    """uvicorn's own, which accepts by `server/transport/listener.py` and has clients told before it closes
    their connections.

    `farewell` answers with the seconds that requests under way may still take; `on_stop` is called when a
    signal says so.
    """

    def __init__(
        self,
        config: Config,
        farewell: Callable[[], Awaitable[float]],
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._farewell = farewell
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._on_stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()

        def make_protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )

        by_address = not self.config.proxy_headers
        for each in sockets or []:
            each.listen(self.config.backlog)
            listener = Listener(each, make_protocol, by_address=by_address, tls=self.config.ssl)
            self.servers.append(listener)  # type: ignore[arg-type]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:  # nobody new comes in meanwhile
            server.close()
        try:
            self.config.timeout_graceful_shutdown = math.ceil(await self._farewell())
        finally:
            await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or one line about why there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as on_failure:
            listener = on_failure.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            on_failure.pop_all()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port or --host"
        ) from None
    return listener
