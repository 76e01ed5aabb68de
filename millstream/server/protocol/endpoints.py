"""Entry of an address that is answered over HTTP: one line in a table, from which its route and its
description are made.

A handler gets the server, the words of its path and a checked body, and answers with a struct, a response or
nothing. Knows no route of its own: `rest.py` and `webrtc.py` beside it, `server/health.py` and Scope's
dialect have the tables.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import MillstreamError, Overloaded, UnknownSession
from millstream.core.server_messages import ErrorAnswer, ErrorBody
from millstream.server.access.auth import pass_of
from millstream.server.access.budgets import ClientAccount, Clients
from millstream.server.access.limits import ClientLimits
from millstream.server.access.shares import Holdings, Quota
from millstream.server.protocol.bodies import json_response, read_json
from millstream.server.protocol.messages import code_of
from millstream.server.sessions.archive import Archive
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.server.transport.peers import Peers

JSON = "application/json"
STATUS = {
    "bad_state": 409, "not_found": 404, "read_only": 403, "too_large": 413, "too_fast": 429, "refused": 503, "not_kept": 507,
    "failed": 500,
}  # fmt: skip

MAX_UPLOADS = 3
"""Most uploads of one client at once: those under way are not counted among files yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """State that handlers work with, for as long as the server runs."""

    hub: SessionHub
    peers: Peers
    limits: ClientLimits
    clients: Clients
    client: ClientAccount = field(default_factory=ClientAccount)
    """Client that asks."""
    began: float = field(default_factory=time.time)
    """Unix time in seconds at which the server began."""
    uploads: Holdings = field(default_factory=lambda: Holdings(Quota(MAX_UPLOADS), "uploads"))

    def asked_by(self, connection: HTTPConnection) -> ServerState:
        """Return this state for one request or socket, with the client that asks."""
        brought = pass_of(connection.scope)
        client = self.clients.at(connection.client).bringing(
            brought.key, brought.session_id, brought.only_views
        )
        return replace(self, client=client)

    def spend_picture(self, image: bytes) -> None:
        """Charge a picture to this client, if there is one. Raises where it is too large, or comes too soon."""
        if image:
            self.limits.check_picture(image)
            self.client.images.spend("pictures")

    async def read(self, num_bytes: int, parse: Callable[[], T]) -> T:
        """Return `parse()` of a message of `num_bytes`, and charge its CPU time to this client."""
        return await self.hub.reader.read(self.client, num_bytes, parse)

    def session(self, words: Mapping[str, str]) -> LiveSession:
        """Return the session that a path names, if it is the client's."""
        return self.hub.live_sessions.find(words["session"], self.client.key)

    def known_session(self, words: Mapping[str, str]) -> LiveSession:
        """Return the session that a path names, even if it ended a short while ago."""
        return self.hub.live_sessions.find_known(words["session"], self.client.key)

    @property
    def archive(self) -> Archive:
        """Archive of what is kept of the client's."""
        return self.hub.archive_of(self.client.key)


T = TypeVar("T")
Handler = Callable[[ServerState, Mapping[str, str], Any], Awaitable[Any]]
Explain = Callable[[MillstreamError], msgspec.Struct]
"""Function that writes an error as a protocol's clients read it."""


def status_of(error: MillstreamError) -> tuple[str, int]:
    """Return the code and the HTTP status of an error."""
    code = code_of(error, "bad_message")
    if isinstance(error, Overloaded) and error.never:
        return (
            code,
            422,
        )  # a client that waits and tries again, as it may after a 503, would be refused for ever
    return code, STATUS.get(code, 400)


def error_answer(error: MillstreamError) -> msgspec.Struct:
    return ErrorAnswer(error=ErrorBody(code=status_of(error)[0], message=str(error)))


def error_response(error: MillstreamError, explain: Explain) -> Response:
    return json_response(explain(error), status_of(error)[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    method: str
    path: str
    does: Handler
    says: str
    """One line for the reader of the schema."""
    body: type | None = None
    """Type of the body: a struct, or bytes."""
    holds_picture: bool = False
    """True if a body may be larger by a picture in base64."""
    reads_itself: bool = False
    """True if the handler is given the request instead of its body."""
    for_viewers: bool = False
    """Allow a body from a read-only key."""
    answer: type | None = None
    """Type of the answer: a struct; None: nothing, or a file of `media_type`."""
    media_type: str = JSON
    """Media type of the answer."""
    status: int = 200
    error: type = ErrorAnswer
    explain: Explain = error_answer

    def route(self) -> Route:
        return Route(self.path, self.handle, methods=[self.method])

    async def handle(self, request: Request) -> Response:
        server: ServerState = request.app.state.server.asked_by(request)
        try:
            self._check_rights(server, request.path_params)
            body = await self._read(request, server)
            async with self._asked_of_session(server, request.path_params):
                answer = await self.does(server, request.path_params, body)
        except MillstreamError as error:
            return error_response(self._coded(error), self.explain)
        if isinstance(answer, Response):
            return answer
        return Response(status_code=self.status) if answer is None else json_response(answer, self.status)

    def _coded(self, error: MillstreamError) -> MillstreamError:
        """Return a session's refusal with the code that it has on a socket; other errors unchanged."""
        is_ours = self.explain is error_answer and "{session}" in self.path
        return ProtocolError(code_of(error, "bad_control"), str(error)) if is_ours else error

    @asynccontextmanager
    async def _asked_of_session(self, server: ServerState, words: Mapping[str, str]) -> AsyncIterator[None]:
        """Hold a session here for the block. Raises where it has moved: it does nothing more here."""
        live_session = server.hub.live_sessions.get(words.get("session", ""))
        if live_session is None or self.method == "GET":
            yield
            return
        async with live_session.handoff.answering() as stays:
            if not stays:
                raise UnknownSession("the session has moved; say it again")
            yield

    def _check_rights(self, server: ServerState, words: Mapping[str, str]) -> None:
        """Check the rights of a client that sends a body, before any of the body is read."""
        if self.body is None:
            return
        if not self.for_viewers:
            server.client.key.check_steering()
        if "session" in words:
            server.known_session(words)

    async def _read(self, request: Request, server: ServerState) -> Any:
        if self.reads_itself:
            return request
        if self.body is None:
            return None
        limits = server.limits
        most = limits.max_picture_text_bytes if self.holds_picture else limits.max_text_bytes
        return await read_json(request, self.body, most, server)
