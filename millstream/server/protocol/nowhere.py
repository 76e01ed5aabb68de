"""Answers at unknown addresses, and at known ones that want another method, in the form of all other
errors."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.websockets import WebSocket

from millstream.core.server_messages import ErrorAnswer, ErrorBody
from millstream.server.protocol.bodies import json_response


async def answer_nowhere(request: Request, error: Exception) -> Response:
    """Several routes may have one address, each its method, and the page's files stand beside them all: they
    answer last."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    methods = _methods(request)
    if methods and request.method not in methods:
        listed = " or ".join(sorted(methods - {"HEAD"}))
        body = ErrorBody(
            code="bad_message", message=f"{path} is asked with {listed}, not with {request.method}"
        )
        status = 405
        headers = {"Allow": ", ".join(sorted(methods))}
    else:
        body = ErrorBody(code="not_found", message=f"nothing is at {path}; /openapi.json says what is where")
        status = 404
        headers = {}
    response = json_response(ErrorAnswer(error=body), status)
    response.headers.update(headers)
    return response


async def refuse_socket(websocket: WebSocket) -> None:
    """Answer a WebSocket at an address that has none. Files stand there as well, and older Starlettes fail at
    them."""
    error = ErrorBody(
        code="not_found", message="no WebSocket is at this address; /v1/stream is the native one's"
    )
    await websocket.send_denial_response(json_response(ErrorAnswer(error=error), 404))


def _methods(request: Request) -> set[str]:
    """Return the methods that have a route at this address."""
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    here = [each for each in routes if each.matches(request.scope)[0] != Match.NONE]
    return {method for each in here for method in each.methods or ()}
