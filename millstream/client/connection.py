"""One WebSocket to a server: messages out, messages in. The only file of client and load that knows the
WebSocket library."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from urllib.parse import urlsplit

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from millstream.client.reading import Heard, read, write
from millstream.core.client_messages import AnyClientMessage
from millstream.core.errors import ConfigError, ProtocolBroken
from millstream.core.server_messages import ErrorAnswer

PING_S = 10.0
PONG_S = 15.0
"""Seconds that a server has to answer a ping, sent every `PING_S`: one whose machine has gone sends nothing,
not even an end."""
OPEN_S = 10.0
"""Seconds to wait for a server to answer a connection."""
CLOSE_S = 2.0
MAX_BYTES = 64 * 2**20
"""Most bytes of one message: raw pictures of a chunk are the largest."""
MAX_WAITING = 64
"""Most received messages that wait to be read; then the server is made to wait."""
SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


class Connection:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        key: str | None = None,
        ticket: str = "",
        tls: ssl.SSLContext | None = None,
        sock: socket.socket | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> Connection:
        """`ticket` is what another server gave to be let in here; `sock` is one that is connected already;
        `tls`, what to trust where that is not what the system trusts."""
        address = stream_address(url) + (f"?ticket={ticket}" if ticket else "")
        if tls is not None and not address.startswith("wss:"):
            raise ConfigError(f"tls is for an address that begins with https, got {url!r}")
        if key is not None and not re.fullmatch(r"[!-~]+", key):
            raise ConfigError(
                "the key holds something that no key does, such as a space or the end of a line; take it away"
            )
        try:
            opened = await connect(
                address,
                additional_headers=None if key is None else {"Authorization": f"Bearer {key}"},
                sock=sock,
                ssl=tls or address.startswith("wss:") or None,
                proxy=None,
                compression=None,
                max_size=MAX_BYTES,
                max_queue=max_waiting,
                ping_interval=PING_S,
                ping_timeout=PONG_S,
                open_timeout=OPEN_S,
                close_timeout=CLOSE_S,
            )
        except (OSError, TimeoutError, asyncio.TimeoutError, websockets.InvalidHandshake) as error:
            raise ProtocolBroken(f"no connection to {url}: {_why(error)}") from None
        return cls(opened)

    async def say(self, message: AnyClientMessage) -> None:
        await self.say_text(write(message))

    async def say_text(self, text: str | bytes) -> None:
        """Also a camera's frame."""
        try:
            await self._socket.send(text)
        except websockets.ConnectionClosed as error:
            raise _lost(error) from None

    async def hear(self, until: float | None = None) -> Heard | None:
        """The next message; None when none has come by then (`time.monotonic`)."""
        try:
            return read(
                await asyncio.wait_for(self.receive(), None if until is None else until - time.monotonic())
            )
        except asyncio.TimeoutError:
            return None

    async def receive(self) -> str | bytes:
        """The next message, unread."""
        try:
            return await self._socket.recv()
        except websockets.ConnectionClosed as error:
            raise _lost(error) from None

    async def close(self) -> None:
        await self._socket.close()

    async def vanish(self) -> None:
        """Without a goodbye, as when a cable is pulled."""
        self._socket.transport.abort()
        await self._socket.wait_closed()


def stream_address(url: str) -> str:
    """Where the socket is, of a server at an address such as it prints."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in SCHEMES and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        whole = False
    if not whole:
        raise ConfigError(f"the address must look like http://127.0.0.1:8000, got {url!r}")
    return f"{SCHEMES[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}/v1/stream"


def _why(error: Exception) -> str:
    """The server's own line where it sent one."""
    if isinstance(error, websockets.InvalidStatus):
        status = error.response.status_code
        try:
            return msgspec.json.decode(error.response.body or b"", type=ErrorAnswer).error.message
        except msgspec.MsgspecError:
            if status in (403, 404):
                return f"no stream is at this address (HTTP {status}); give the one that the server printed"
    if isinstance(error, websockets.InvalidMessage):
        return "what answers does not speak HTTP; if it has a certificate, its address begins with https"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted, {error.verify_message}; give what to trust as tls"
    if isinstance(error, ssl.SSLError):
        return "what answers does not speak TLS; without a certificate its address begins with http"
    return str(error) or "it does not answer"


def _lost(error: websockets.ConnectionClosed) -> ProtocolBroken:
    close = error.rcvd
    said = close and f"{close.code} {close.reason}".strip()
    return ProtocolBroken(f"the server closed the connection: {said}" if said else "the connection was lost")
