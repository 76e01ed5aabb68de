"""Requests over HTTP, passed on to the replica that they are for: REST, files, WebRTC's offers, the dialects of others.

What opens a session is given a place first, and a session's own requests go where it is. What is kept on one replica alone, as
a finished video is, is asked of each until one has it; lists are put together.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx2
import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from millstream.core.errors import MillstreamError, Overloaded, ProtocolBroken
from millstream.fleet.fleet import LiveFleet
from millstream.fleet.replica_link import ReplicaLink
from millstream.server.access.keys import Key
from millstream.server.dialects import scope
from millstream.server.dialects.krea_films import explain_krea
from millstream.server.protocol import videos
from millstream.server.protocol.endpoints import error_answer, error_response

SESSIONS = "/v1/sessions"
OPENS = re.compile(r"/v1/(sessions|videos|webrtc/offer|snapshots/[^/]+/sessions)|/api/v1/webrtc/offer")
"""What a session comes of."""
LISTS = {SESSIONS: "sessions", "/v1/videos": "data"}
"""What each replica has some of, and where in the answer."""
FOR_ALL = ("/api/v1/pipeline/load",)
"""What holds for all sessions that come later, wherever they come to."""
MAX_BODY_BYTES = 64 * 2**20
"""Of what is not streamed: all but snapshots."""
OK, NOT_FOUND = 200, 404
DIALECTS = {"/api/": scope.explain, "/v1/videos": videos.explain, "/upload_": explain_krea, "/download_": explain_krea}
"""Where errors are not written in our words."""
NOT_PASSED_ON = {"host", "authorization", "content-length", "transfer-encoding", "connection", "origin"}
HOPS = {"content-length", "transfer-encoding", "connection", "content-encoding"}


class Forwarder:
    def __init__(self, fleet: LiveFleet) -> None:
        self._fleet = fleet
        self._http = httpx2.AsyncClient(timeout=httpx2.Timeout(60.0, read=None), trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def answer(self, request: Request, key: Key) -> Response:
        try:
            return await self._answer(request, key)
        except MillstreamError as error:
            return refusal(request.url.path, error)

    async def _answer(self, request: Request, key: Key) -> Response:
        path = request.url.path
        if path.startswith("/v1/fleet"):
            raise Overloaded("this address is not for clients")
        if path.startswith(f"{SESSIONS}/"):
            session_id = path.removeprefix(f"{SESSIONS}/").partition("/")[0]
            here, body = await self._fleet.find(session_id, key.name, lambda queued: None), await _body(request)
            answer = await self._send(request, here, here.ticket("", key.name), body)
            if answer.status_code == NOT_FOUND and (there := await self._fleet.moved_from(session_id, here)) is not None:
                await answer.aclose()
                answer = await self._send(request, there, there.ticket("", key.name), body)
            return _passed_on(answer)
        if request.method == "POST" and OPENS.fullmatch(path):
            body, session_id = await _body(request), secrets.token_urlsafe(16)
            asked = await self._fleet.price(_ask(path, body), session_id, key=key.name)
            here = await self._fleet.place(asked, lambda queued: None)
            return _passed_on(await self._send(request, here, here.ticket(session_id, key.name), body))
        if path in FOR_ALL:
            return await self._tell_all(request, key)
        if request.method == "GET" and path in LISTS:
            return await self._list_all(request, key, LISTS[path])
        return await self._ask_each(request, key)

    async def _ask_each(self, request: Request, key: Key) -> Response:
        """Until one knows of it. What is uploaded goes to one alone."""
        uploads = request.method == "POST"
        body = request.stream() if uploads else await _body(request)
        *others, last = self._everywhere()
        for here in others:
            answer = await self._send(request, here, here.ticket("", key.name), body)
            if uploads or answer.status_code != NOT_FOUND:
                return _passed_on(answer)
            await answer.aclose()
        return _passed_on(await self._send(request, last, last.ticket("", key.name), body))

    async def _tell_all(self, request: Request, key: Key) -> Response:
        """All replicas, those that are started later excepted; what the last one says."""
        body = await _body(request)
        *others, last = self._ready()
        for here in others:
            await (await self._send(request, here, here.ticket("", key.name), body)).aclose()
        return _passed_on(await self._send(request, last, last.ticket("", key.name), body))

    async def _list_all(self, request: Request, key: Key, field: str) -> Response:
        """One list of what every replica has."""
        lists: list[dict[str, Any]] = []
        for here in self._everywhere():
            answer = await self._send(request, here, here.ticket("", key.name), b"")
            if answer.status_code != OK:
                return _passed_on(answer)
            lists.append(msgspec.json.decode(await answer.aread()))
        found = [each for one in lists for each in one[field]]
        found.sort(key=lambda each: -each.get("created_at", 0))
        ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found and "first_id" in lists[0] else {}
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

    async def _send(
        self, request: Request, here: ReplicaLink, ticket: str, body: bytes | AsyncIterator[bytes]
    ) -> httpx2.Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in NOT_PASSED_ON]
        url = f"{here.address.url}{request.url.path}" + (f"?{request.url.query}" if request.url.query else "")
        sent = self._http.build_request(
            request.method, url, headers=[*headers, ("Authorization", f"Bearer {ticket}")], content=body or None
        )
        try:
            return await self._http.send(sent, stream=True)
        except httpx2.HTTPError as error:
            raise ProtocolBroken(f"the replica does not answer: {error}") from None


def refusal(path: str, error: MillstreamError) -> Response:
    """What the gateway itself has to say, as the replica that answers there would have said it."""
    return error_response(
        error, next((explain for prefix, explain in DIALECTS.items() if path.startswith(prefix)), error_answer)
    )


def _passed_on(answer: httpx2.Response) -> Response:
    kept = {name: value for name, value in answer.headers.items() if name not in HOPS}

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in answer.aiter_raw():
                yield piece
        finally:
            await answer.aclose()

    return StreamingResponse(pieces(), answer.status_code, kept)


async def _body(request: Request) -> bytes:
    pieces, size = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise Overloaded(f"a request may have {MAX_BODY_BYTES} bytes")
    return b"".join(pieces)


def _ask(path: str, body: bytes) -> dict[str, Any]:
    """What a session is asked to be, where the body says so in our words."""
    fields: Any = None
    with suppress(msgspec.MsgspecError):
        fields = msgspec.json.decode(body)
    if isinstance(fields, dict) and path == SESSIONS:
        return fields
    if isinstance(fields, dict) and isinstance(fields.get("start"), dict):
        return {"prompt": "-"} | {name: value for name, value in fields["start"].items() if name != "prompts"}
    return {"prompt": "-"}
