"""Listening, and letting go of connections that do not let go of us.

A peer that stopped reading keeps a closing connection open for as long as something waits to be sent to it. Here such a
connection is cut a moment after it should have closed.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from millstream.core.errors import ConfigError

LINGER_S = 5.0
BACKLOG = 128


class ImpatientWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's own, with an end to waiting."""

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:
            self.loop.call_later(LINGER_S, self.transport.abort)


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
