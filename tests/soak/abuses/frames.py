"""WebSockets by hand: frames as bytes, wrong ones too. A polite library would refuse to send most of what is
sent here."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass

from tests.soak.abuses.http import read_answer
from tests.soak.abuses.target import Target

CONTINUATION = 0x0
TEXT = 0x1
BINARY = 0x2
CLOSE = 0x8
PING = 0x9
PONG = 0xA
KEY = "bWlsbHN0cmVhbSBhYnVzZQ=="
OPEN_S = 10.0


class Turned(ConnectionError):
    """Away at the door: the handshake was answered with something else, or not at all."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the handshake was answered with {status}")
        self.status = status


def frame(payload: bytes, opcode: int = TEXT, *, fin: bool = True, says_bytes: int | None = None) -> bytes:
    """As a client sends it. The mask is zero, which is a mask; `says_bytes` lies about the length."""
    length = len(payload) if says_bytes is None else says_bytes
    first = (0x80 if fin else 0) | opcode
    if length < 126:
        head = struct.pack("!BB", first, 0x80 | length)
    elif length < 2**16:
        head = struct.pack("!BBH", first, 0x80 | 126, length)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, length)
    return head + bytes(4) + payload


def handshake(host: str, path: str, *headers: str) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {KEY}", *headers, "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


@dataclass(slots=True)
class RawSocket:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    close_code: int | None = None
    """Close code from the server, once it has closed; 1006 where it sent none."""

    @classmethod
    async def open(
        cls,
        target: Target,
        path: str = "/v1/stream",
        *headers: str,
        source: str | None = None,
        small: bool = False,
    ) -> RawSocket:
        """Raises `Turned` where the server does not want to, `OSError` where there is none."""
        reader, writer = await target.dial(source, small=small)
        try:
            writer.write(handshake(target.name, path, *headers))
            answer = await asyncio.wait_for(read_answer(reader), OPEN_S)
            if answer is None or answer.status != 101:
                raise Turned(None if answer is None else answer.status)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, asyncio.TimeoutError):
                raise Turned(None) from None
            raise
        return cls(reader, writer)

    def send(self, payload: bytes | str, opcode: int | None = None) -> None:
        """A whole message. Text for a string, binary for bytes, unless another kind of frame is named."""
        data = payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else payload
        kind = opcode if opcode is not None else TEXT if isinstance(payload, str) else BINARY
        self.writer.write(frame(data, kind))

    async def drain(self, patience_s: float = 5.0) -> None:
        """Raises `ConnectionError` where the server is gone, and where it takes nothing for so long."""
        try:
            await asyncio.wait_for(self.writer.drain(), patience_s)
        except asyncio.TimeoutError:
            raise ConnectionError(f"nothing was taken for {patience_s:g} s") from None

    async def hear(self) -> tuple[int, bytes] | None:
        """The next frame; None when the connection is over. Pings are answered on the way."""
        try:
            first, second = await self.reader.readexactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
            payload = await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close_code = self.close_code or 1006
            return None
        opcode = first & 0x0F
        if opcode == PING:
            self.writer.write(frame(payload, PONG))
        elif opcode == CLOSE:
            self.close_code = struct.unpack_from("!H", payload)[0] if len(payload) >= 2 else 1005
            return None
        return opcode, payload

    def vanish(self) -> None:
        """Without a goodbye."""
        self.writer.transport.abort()

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *error: object) -> None:
        self.vanish()
