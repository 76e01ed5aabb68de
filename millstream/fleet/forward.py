"""Requests over HTTP, passed on to the replica that they are for: REST, files, WebRTC's offers, the dialects
of others.

What opens a session is given a place first, and a session's own requests go where it is. What is kept on one
replica alone, as a finished video is, is asked of each until one has it; lists are put together.

A request is passed on in one spelling, made of what was checked, with the few headers that replicas read. Its
body is held to the server's own limits of size, time and pace; what may be larger than one message goes
through piece by piece.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, quote_from_bytes

import httpx2
import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from millstream.core.client_messages import Ask, Attach, ProtocolError, Start, View
from millstream.core.errors import MillstreamError, Overloaded, ProtocolBroken
from millstream.core.keys import Key
from millstream.fleet.fleet import LiveFleet
from millstream.fleet.replica_link import ReplicaLink
from millstream.fleet.tickets import OFFER, OPENS, Right, request_digest
from millstream.server.access.auth import pass_of
from millstream.server.access.limits import ClientLimits
from millstream.server.access.shares import Holdings, Quota, client_at
from millstream.server.dialects import scope as scopes_dialect
from millstream.server.dialects.krea_films import explain_krea
from millstream.server.protocol import videos
from millstream.server.protocol.bodies import decode_json, limited
from millstream.server.protocol.endpoints import error_answer, error_response
from millstream.server.protocol.messages import read_opening
from millstream.server.protocol.rest import MAX_UPLOAD_BYTES
from millstream.server.protocol.webrtc import Offer
from millstream.server.transport.tasks import stop_all

T = TypeVar("T")
log = logging.getLogger(__name__)

SESSIONS = "/v1/sessions"
SNAPSHOTS = "/v1/snapshots"
LISTS = {SESSIONS: "sessions", "/v1/videos": "data"}
"""Paths of lists that each replica has a part of, and the list's field in the answer."""
FOR_ALL = ("/api/v1/pipeline/load",)
"""Paths of requests that hold for all later sessions, on whichever replica."""
LIMITS = ClientLimits()
STREAMED = {
    "/v1/videos": LIMITS.max_picture_text_bytes,
    SNAPSHOTS: MAX_UPLOAD_BYTES,
    "/upload_video": MAX_UPLOAD_BYTES,
    "/upload_start_frame": MAX_UPLOAD_BYTES,
}
"""Bytes that a body may have which goes through unread, when it is sent to one replica with POST."""
UNDER_WAY = Quota(512)
"""Requests of one client at once, answers that it still reads among them."""
OK = 200
NOT_FOUND = 404
WRONG = 400
DIALECTS = {
    "/api/": scopes_dialect.explain,
    "/v1/videos": videos.explain,
    "/upload_": explain_krea,
    "/download_": explain_krea,
}
"""Where errors are not written in our words."""
CONDITIONS = (b"if-range", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since")
PASSED_ON = frozenset((b"accept", b"content-type", b"range", *CONDITIONS))
"""Headers of a client that mean something to a replica."""
HOPS = {"content-length", "transfer-encoding", "connection", "content-encoding"}
PLAIN = "".join(chr(letter) for letter in range(0x21, 0x7F))
"""Characters of a query that are passed on without percent-encoding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _PassedRequest:
    """A request as it is passed on."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes | AsyncIterator[bytes]
    key: Key
    client: str


class Forwarder:
    """An ASGI application."""

    def __init__(self, fleet: LiveFleet) -> None:
        self._fleet = fleet
        self._under_way = Holdings(UNDER_WAY, "requests")
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(60.0, read=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),  # UNDER_WAY bounds them
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            with self._under_way.one_by(client_at(scope.get("client"))):
                answer = await self._answer(request)
                await answer(scope, receive, send)
        except MillstreamError as error:
            await refusal(scope["path"], error)(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.scope["path"]
        method = request.method
        key = pass_of(request.scope).key
        check_path(path)
        if path.startswith("/v1/fleet"):
            raise ProtocolError("not_found", "this address is not for clients")
        if method == "POST" and (
            path == SNAPSHOTS or path in FOR_ALL or (OPENS.fullmatch(path) and path != OFFER)
        ):
            key.check_steering()  # before anything is read, or has a place
        streamed = STREAMED.get(path) if method == "POST" else None
        asked = _PassedRequest(
            method=method,
            path=path,
            query=request.scope["query_string"],
            headers=[(name, value) for name, value in request.scope["headers"] if name in PASSED_ON],
            body=await _small_body(request) if streamed is None else limited(request, streamed),
            key=key,
            client=client_at(request.scope.get("client")),
        )
        if streamed is not None:
            return await self._route(
                asked
            )  # a client that leaves is noticed by the handler that reads its body
        return await _unless_gone(request.receive, self._route(asked))

    async def _route(self, asked: _PassedRequest) -> Response:
        path = asked.path
        if path.startswith(f"{SESSIONS}/"):
            return await self._ask_session(asked, path.removeprefix(f"{SESSIONS}/").partition("/")[0])
        if asked.method == "POST" and path == OFFER:
            return await self._offer(asked)
        if asked.method == "POST" and OPENS.fullmatch(path):
            return await self._open(asked, await asyncio.to_thread(_session_asked, asked))
        if path in FOR_ALL:
            return await self._tell_all(asked)
        if asked.method == "GET" and path in LISTS:
            return await self._list_all(asked, LISTS[path])
        return await self._ask_each(asked)

    async def _ask_session(self, asked: _PassedRequest, session_id: str) -> Response:
        here = await self._fleet.find(session_id, asked.key.name, lambda queued: None)
        answer = await self._send(asked, here)
        if (
            answer.status_code == NOT_FOUND
            and (there := await self._fleet.moved_from(session_id, here)) is not None
        ):
            await answer.aclose()
            answer = await self._send(asked, there)
        return _PassedOn(answer)

    async def _offer(self, asked: _PassedRequest) -> Response:
        """Forward a WebRTC offer of the native protocol, which opens a session or joins one."""
        assert isinstance(asked.body, bytes), "an offer is read whole"
        opening = read_opening(
            {"type": "start", **decode_json(asked.body or b"{}", Offer, LIMITS).start, "formats": ["raw"]}
        )
        match opening:
            case Attach(session=session_id):
                here = await self._fleet.find(session_id, asked.key.name, lambda queued: None)
                return _PassedOn(await self._send(asked, here, session_id))
            case View(view=view_id):
                return _PassedOn(await self._send(asked, await self._fleet.find_view(view_id), view_id))
        asked.key.check_steering()
        return await self._open(asked, asked_of(opening) if isinstance(opening, Start) else ANY_SESSION)

    async def _open(self, asked: _PassedRequest, ask: Ask) -> Response:
        fleet = self._fleet
        session_id = new_session_id()
        here = await fleet.place(await fleet.price(ask, session_id, key=asked.key.name), lambda queued: None)
        opened = False
        try:
            answer = await self._send(asked, here, session_id)
            opened = answer.status_code < WRONG
        finally:
            if not opened:
                fleet.give_back(session_id)
        return _PassedOn(answer)

    async def _ask_each(self, asked: _PassedRequest) -> Response:
        """Until one knows of it. What is uploaded goes to one alone."""
        *others, last = self._everywhere()
        for here in others:
            answer = await self._send(asked, here)
            if asked.method == "POST" or answer.status_code != NOT_FOUND:
                return _PassedOn(answer)
            await answer.aclose()
        return _PassedOn(await self._send(asked, last))

    async def _tell_all(self, asked: _PassedRequest) -> Response:
        """All replicas, those that are started later excepted; what the last one says."""
        *others, last = self._ready()
        for here in others:
            await (await self._send(asked, here)).aclose()
        return _PassedOn(await self._send(asked, last))

    async def _list_all(self, asked: _PassedRequest, field: str) -> Response:
        """One list of what every replica has."""
        lists: list[dict[str, Any]] = []
        for here in self._everywhere():
            answer = await self._send(asked, here)
            if answer.status_code != OK:
                return _PassedOn(answer)
            try:
                lists.append(msgspec.json.decode(await answer.aread()))
            except httpx2.HTTPError as error:
                raise _silent(error) from None
        found = [each for one in lists for each in one[field]]
        found.sort(key=lambda each: -each.get("created_at", 0))
        ends = (
            {"first_id": found[0]["id"], "last_id": found[-1]["id"]}
            if found and "first_id" in lists[0]
            else {}
        )
        return JSONResponse(lists[0] | {field: found} | ends)

    def _ready(self) -> list[ReplicaLink]:
        ready = self._fleet.ready()
        if not ready:
            raise Overloaded("no replica is ready; try again in a moment")
        return ready

    def _everywhere(self) -> list[ReplicaLink]:
        """Also those of other models, last: a view link or a file does not say whose it is."""
        first = self._ready()
        return [*first, *(each for each in self._fleet.links.values() if each.is_ready and each not in first)]

    async def _send(self, asked: _PassedRequest, here: ReplicaLink, session_id: str = "") -> httpx2.Response:
        """With a ticket for this request alone, and for the session that it may open or join."""
        right: Right = "request"
        digest = request_digest(asked.method, asked.path)
        ticket = here.ticket(right, session_id, key=asked.key.name, request=digest, client=asked.client)
        headers = [*asked.headers, (b"authorization", f"Bearer {ticket}".encode())]
        sent = self._http.build_request(
            asked.method, _address(here, asked), headers=headers, content=asked.body or None
        )
        try:
            return await self._http.send(sent, stream=True)
        except httpx2.HTTPError as error:
            raise _silent(error) from None


class _PassedOn(Response):
    """A replica's answer, passed on as it comes until either side has had enough."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._answer = answer
        self.background = None
        self.status_code = answer.status_code
        self.init_headers({name: value for name, value in answer.headers.items() if name not in HOPS})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        passing = asyncio.ensure_future(self._pass_on(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            failure, _ = await stop_all([passing, leaving])
            await self._answer.aclose()
        if isinstance(failure, Exception):
            raise failure

    async def _pass_on(self, send: Send) -> None:
        """Stream the replica's answer. If it breaks off, send no final piece: the client sees it is cut."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for piece in self._answer.aiter_raw():
                message = {"type": "http.response.body", "body": piece, "more_body": True}
                await asyncio.wait_for(send(message), LIMITS.patience_s)
        except httpx2.HTTPError as error:
            log.warning("an answer of a replica broke off: %s", error)
            return
        except (OSError, asyncio.TimeoutError):  # the client has gone, or takes nothing
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def refusal(path: str, error: MillstreamError) -> Response:
    """Return the gateway's own error, in the form that a replica's answer at this path has."""
    return error_response(
        error,
        next((explain for prefix, explain in DIALECTS.items() if path.startswith(prefix)), error_answer),
    )


def check_path(path: str) -> None:
    """That it says the same to the next server: a client of HTTP takes `..` away before it asks."""
    if {".", ".."} & set(path.split("/")) or any(
        ord(letter) < 0x20 or ord(letter) == 0x7F for letter in path
    ):
        raise ProtocolError(
            "bad_message", "a path may hold no . and no .. between its slashes, and no control characters"
        )


def path_and_query(path: str, query: bytes) -> str:
    """In one spelling: what is not plain is escaped."""
    return quote(path, safe="/", errors="replace") + (
        f"?{quote_from_bytes(query, safe=PLAIN)}" if query else ""
    )


ANY_SESSION = Ask(prompt="-")
"""Where a request does not say in our words what its session is to be."""


def asked_of(start: Start) -> Ask:
    return Ask(**{name: getattr(start, name) for name in Ask.__struct_fields__})


def new_session_id() -> str:
    return secrets.token_urlsafe(16)


def _session_asked(asked: _PassedRequest) -> Ask:
    if asked.path != SESSIONS:
        return ANY_SESSION
    assert isinstance(asked.body, bytes), "what opens a session here is read whole"
    return decode_json(asked.body or b"{}", Ask, LIMITS)


def _address(here: ReplicaLink, asked: _PassedRequest) -> str:
    return here.address.url + path_and_query(asked.path, asked.query)


def _silent(error: httpx2.HTTPError) -> ProtocolBroken:
    return ProtocolBroken(f"the replica does not answer: {error}")


async def _small_body(request: Request) -> bytes:
    body = b"".join([piece async for piece in limited(request, LIMITS.max_picture_text_bytes)])
    LIMITS.check_message(body)
    return body


async def _unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """A client that leaves is not answered, and what it waited for is let go. Its body has been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ProtocolError("bad_message", "the connection was lost before the answer")
        return working.result()
    finally:
        await stop_all([working, leaving])


async def _gone(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
