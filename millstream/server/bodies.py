"""A request's body, read with a limit and checked, and a struct as a response. Knows no route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from millstream.server.messages import ProtocolError

T = TypeVar("T")


async def limited(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """The body in pieces, as long as it is short enough."""
    total = 0
    async for piece in request.stream():
        total += len(piece)
        if total > max_bytes:
            raise ProtocolError("too_large", f"a body may have {max_bytes} bytes")
        yield piece


async def read_json(request: Request, kind: type[T], max_bytes: int) -> T:
    data = b"".join([piece async for piece in limited(request, max_bytes)])
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError("bad_message", f"cannot read the body: {str(error)[:300]}") from None


def json_response(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
