"""One WebSocket to a server on this machine. The only file here that knows the WebSocket library."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from urllib.parse import urlsplit

import websockets
from websockets.asyncio.client import ClientConnection, connect

from millstream.core.errors import ConfigError, ProtocolBroken
from millstream.load.messages import Heard, Said, read, write

OPEN_S = 10.0
"""Patience with a server that does not answer a connection."""
CLOSE_S = 2.0
MAX_BYTES = 64 * 2**20
"""Of one message: raw pictures of a chunk are the largest."""
SMALL_BUFFER_BYTES = 4096


class Connection:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, url: str, *, small_buffers: bool = False) -> Connection:
        """With small buffers a server soon feels that this client does not read."""
        check_loopback(url)
        sock = await _small_socket(url) if small_buffers else None
        try:
            opened = await connect(
                f"{url.rstrip('/')}/v1/stream",
                sock=sock,
                proxy=None,
                compression=None,
                max_size=MAX_BYTES,
                max_queue=1 if small_buffers else 64,
                open_timeout=OPEN_S,
                close_timeout=CLOSE_S,
            )
        except (OSError, TimeoutError, asyncio.TimeoutError, websockets.InvalidHandshake) as error:
            raise ProtocolBroken(f"no connection to {url}: {str(error) or 'it does not answer'}") from None
        return cls(opened)

    async def say(self, message: Said) -> None:
        await self.say_text(write(message))

    async def say_text(self, text: str) -> None:
        try:
            await self._socket.send(text)
        except websockets.ConnectionClosed as error:
            raise _lost(error) from None

    async def hear(self, until: float) -> Heard | None:
        """The next message; None when none has come by then (`time.monotonic`)."""
        try:
            return read(await asyncio.wait_for(self._socket.recv(), until - time.monotonic()))
        except asyncio.TimeoutError:
            return None
        except websockets.ConnectionClosed as error:
            raise _lost(error) from None

    async def close(self) -> None:
        await self._socket.close()

    async def vanish(self) -> None:
        """Without a goodbye, as when a cable is pulled."""
        self._socket.transport.abort()
        await self._socket.wait_closed()


def check_loopback(url: str) -> None:
    """Load is only ever put on this machine."""
    parts = urlsplit(url)
    if parts.scheme != "ws" or not parts.hostname:
        raise ConfigError(f"the address must look like ws://127.0.0.1:8000, got {url!r}")
    try:
        local = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname).is_loopback
        parts.port  # noqa: B018 - raises when it is no number
    except ValueError:
        local = False
    if not local:
        raise ConfigError(f"load is only put on this machine: use ws://127.0.0.1:PORT, got {url!r}")


async def _small_socket(url: str) -> socket.socket:
    parts = urlsplit(url)
    family = socket.AF_INET6 if ":" in str(parts.hostname) else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port or 80))
    except OSError as error:
        sock.close()
        raise ProtocolBroken(f"no connection to {url}: {error}") from None
    return sock


def _lost(error: websockets.ConnectionClosed) -> ProtocolBroken:
    close = error.rcvd
    return ProtocolBroken(
        f"the server closed the connection: {close.code} {close.reason}" if close else "the connection was lost"
    )
