"""HTTP by hand: requests as bytes, wrong ones too, and answers read from a stream. No library mends them on
the way."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

from tests.soak.abuses.target import Target

ANSWER_S = 30.0
MAX_BODY_BYTES = 256 * 2**20
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    method: str = "GET"
    path: str = "/"
    headers: Headers = ()
    body: bytes = b""

    def encode(self, host: str) -> bytes:
        """Whatever is in it, as it is; a request without a Host gets one."""
        named = {name.lower() for name, _ in self.headers}
        lines = [f"{self.method} {self.path} HTTP/1.1"]
        lines += [] if "host" in named else [f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"Content-Length: {len(self.body)}"] if self.body and "content-length" not in named else []
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + self.body


def post(path: str, body: Any, *headers: tuple[str, str]) -> Request:
    """With a JSON body, or with bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request(
        method="POST", path=path, headers=(("Content-Type", "application/json"), *headers), body=data
    )


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    closes: bool
    """True where the server closes the connection."""

    def field(self, name: str) -> str:
        """Return a text field of a JSON object; empty where there is none."""
        try:
            value = json.loads(self.body)[name]
        except (ValueError, KeyError, TypeError):
            return ""
        return value if isinstance(value, str) else ""


async def read_answer(reader: asyncio.StreamReader, method: str = "GET") -> Answer | None:
    """None where the connection ended without a whole one."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        headers = dict(line.split(b":", 1) for line in head.lower().split(b"\r\n")[1:] if b":" in line)
        length = int(headers.get(b"content-length", b"0"))
        if headers.get(b"transfer-encoding", b"").strip() == b"chunked":
            body = await _chunks(reader)
        elif length and method != "HEAD" and status not in (204, 304):
            body = await reader.readexactly(min(length, MAX_BODY_BYTES))
        else:
            body = b""
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError, IndexError):
        return None
    return Answer(status, body, headers.get(b"connection", b"").strip() == b"close")


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int(await reader.readline(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(pieces)


@dataclass(slots=True)
class Caller:
    """Somebody who asks again and again, over one connection for as long as it lasts, from an address of its
    own."""

    target: Target
    source: str | None = None
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, repr=False)

    @classmethod
    def from_anywhere(cls, target: Target, chance: random.Random) -> Caller:
        return cls(target, target.source(chance))

    async def ask(self, request: Request, *, patience_s: float = ANSWER_S) -> Answer | None:
        """None where the connection ended first. Raises `asyncio.TimeoutError` where nothing comes."""
        return await self.ask_bytes(request.encode(self.target.name), request.method, patience_s=patience_s)

    async def ask_bytes(
        self, data: bytes, method: str = "GET", *, patience_s: float = ANSWER_S
    ) -> Answer | None:
        if self._streams is None:
            self._streams = await self.target.dial(self.source)
        reader, writer = self._streams
        try:
            writer.write(data)
            answer = await asyncio.wait_for(read_answer(reader, method), patience_s)
        except BaseException:
            self.hang_up()
            raise
        if answer is None or answer.closes:
            self.hang_up()
        return answer

    def hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *error: object) -> None:
        self.hang_up()
