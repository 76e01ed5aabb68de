"""A request's body, read with a limit and checked, and a struct as a response. Knows no route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import IO, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from millstream.core.client_messages import ProtocolError

T = TypeVar("T")

PATIENCE_S = 30.0
"""For the next piece of a body, and for all of one that is small."""
SLOWEST_BYTES_PER_S = 256 * 2**10
"""Of a large one, beyond that."""
PIECE_BYTES = 64 * 2**10


async def limited(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """The body in pieces, as long as it is short enough and goes on coming, fast enough on the whole."""
    clock = asyncio.get_running_loop().time
    total, pieces, began = 0, request.stream(), clock()
    while True:
        left_s = PATIENCE_S + total / SLOWEST_BYTES_PER_S - (clock() - began)
        try:
            piece = await asyncio.wait_for(anext(pieces), min(PATIENCE_S, left_s))
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            raise ProtocolError("bad_message", f"the body came too slowly; {total} bytes were taken") from None
        except ClientDisconnect:
            raise ProtocolError("bad_message", "the connection was lost before the end of the body") from None
        total += len(piece)
        if total > max_bytes:
            raise ProtocolError("too_large", f"a body may have {max_bytes} bytes")
        yield piece


async def read_json(request: Request, kind: type[T], max_bytes: int) -> T:
    """A body that is not there says nothing: every field is what it is by default."""
    data = b"".join([piece async for piece in limited(request, max_bytes)])
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError("bad_message", f"cannot read the body: {str(error)[:300]}") from None


async def first_bytes(file: IO[bytes], num_bytes: int) -> AsyncIterator[bytes]:
    """So much of an open file and no more, whatever is added to it meanwhile."""
    with file:
        while num_bytes and (piece := await asyncio.to_thread(file.read, min(PIECE_BYTES, num_bytes))):
            num_bytes -= len(piece)
            yield piece


def json_response(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
