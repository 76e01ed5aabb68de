"""A request's body, read with a limit, at its client's expense, and checked; and a struct as a response.
Knows no route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import IO, Any, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from millstream.core.client_messages import ProtocolError
from millstream.server.access.limits import ClientLimits

T = TypeVar("T")

PATIENCE_S = 30.0
"""Seconds for the next piece of a body, and for all of one that is small."""
SLOWEST_BYTES_PER_S = 256 * 2**10
"""Slowest rate of a large body, beyond `PATIENCE_S`."""
PIECE_BYTES = 64 * 2**10
MAX_DIGITS = 20
"""Digits of a content-length that are parsed; a longer number is too large in any case."""


class Sender(Protocol):
    """A client that sends a body, and pays for reading it."""

    @property
    def limits(self) -> ClientLimits: ...

    async def read(self, num_bytes: int, parse: Callable[[], T]) -> T: ...


async def limited(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the body in pieces, as long as it is short enough and comes fast enough on the whole."""
    if _declared(request) > max_bytes:  # before any of it has come
        raise ProtocolError("too_large", f"a body may have {max_bytes} bytes")
    clock = asyncio.get_running_loop().time
    total = 0
    pieces = request.stream()
    began = clock()
    while True:
        left_s = PATIENCE_S + total / SLOWEST_BYTES_PER_S - (clock() - began)
        try:
            piece = await asyncio.wait_for(anext(pieces), min(PATIENCE_S, left_s))
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            raise ProtocolError(
                "bad_message", f"the body came too slowly; {total} bytes were taken"
            ) from None
        except ClientDisconnect:
            raise ProtocolError("bad_message", "the connection was lost before the end of the body") from None
        total += len(piece)
        if total > max_bytes:
            raise ProtocolError("too_large", f"a body may have {max_bytes} bytes")
        yield piece


async def read_json(request: Request, kind: type[T], max_bytes: int, sender: Sender) -> T:
    """Read a body as a `kind`. Where there is none, every field has its default."""
    data = b"".join([piece async for piece in limited(request, max_bytes)])
    sender.limits.check_message(data)
    return await sender.read(len(data), lambda: decode_json(data or b"{}", kind, sender.limits))


def decode_json(data: bytes, kind: type[T], limits: ClientLimits) -> T:
    """Decode a body; check its number of values, then its fields. Raises `ProtocolError` if one is wrong."""
    limits.check_json(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError("bad_message", f"cannot read the body: {str(error)[:300]}") from None


def _declared(request: Request) -> int:
    """Return the bytes that a body is to have by its header; 0 where there is no such header."""
    text = request.headers.get("content-length", "")
    return int(text[:MAX_DIGITS]) if text.isascii() and text.isdecimal() else 0


async def first_bytes(file: IO[bytes], num_bytes: int) -> AsyncIterator[bytes]:
    """Yield `num_bytes` of an open file and no more, whatever is added to it meanwhile."""
    with file:
        while num_bytes and (piece := await asyncio.to_thread(file.read, min(PIECE_BYTES, num_bytes))):
            num_bytes -= len(piece)
            yield piece


def json_response(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
