"""REST for other people's tools: send a session's pictures to an address, or fetch them from one, as MJPEG or
as HLS.

What is sent is its owner's to say (`server/sessions/outputs`); what is fetched is by its view link, which
only shows it. Players cannot set headers, so addresses below `/v1/views` take a key as `?api_key=KEY`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from millstream.core.client_messages import OutputAsk
from millstream.core.errors import Overloaded
from millstream.core.server_messages import OutputInfo, OutputList
from millstream.server.access.auth import VIEWS
from millstream.server.protocol.endpoints import Endpoint, ServerState
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.outbox import ClientGone, Outbox
from millstream.server.sessions.outputs.hls import UNASKED_S, HlsShelf
from millstream.server.sessions.paced_frames import PacedFrames

BOUNDARY = "picture"
MJPEG = f"multipart/x-mixed-replace; boundary={BOUNDARY}"
PLAYLIST = "application/vnd.apple.mpegurl"
FRAGMENT = "video/mp4"
FIRST_PICTURE_S = 20.0
"""That a player is kept waiting for a list with something in it."""
FRESH = {"Cache-Control": "no-store"}


async def start_output(server: ServerState, words: Mapping[str, str], body: OutputAsk) -> OutputInfo:
    server.client.offers.spend("outputs")
    return server.hub.outputs.start(server.session(words), body.url, body.kbps).info


async def list_outputs(server: ServerState, words: Mapping[str, str], body: None) -> OutputList:
    return OutputList(outputs=server.hub.outputs.infos(server.known_session(words)))


async def stop_output(server: ServerState, words: Mapping[str, str], body: None) -> None:
    server.hub.outputs.stop(server.session(words), words["output"])


async def play_mjpeg(server: ServerState, words: Mapping[str, str], request: Request) -> Response:
    server.client.check_view(words["view"])
    live_session = server.hub.live_sessions.find_view(words["view"])
    if request.method == "HEAD":  # who asks for no pictures would wait for their end
        return Response(media_type=MJPEG, headers=FRESH)
    pictures = _pictures(live_session)
    await anext(pictures)  # raises where there is no room; from here on, whoever goes away is let go
    return StreamingResponse(pictures, media_type=MJPEG, headers=FRESH)


async def _pictures(live_session: LiveSession) -> AsyncIterator[bytes]:
    """Each as a part of its own, when it is due. A picture is shown when the next part begins, so that
    follows at once."""
    outbox = Outbox()
    viewer = live_session.join("jpeg", outbox)
    shown = PacedFrames(outbox)
    try:
        yield b""
        yield f"--{BOUNDARY}\r\n".encode()
        while (picture := await shown.next()) is not None:
            head = f"Content-Type: image/jpeg\r\nContent-Length: {len(picture[0])}\r\n\r\n"
            yield head.encode() + picture[0] + f"\r\n--{BOUNDARY}\r\n".encode()
    except ClientGone:
        return
    finally:
        live_session.remove_viewer(viewer)


class HlsShelves:
    """HLS shelves of one server, by view link."""

    def __init__(self) -> None:
        self._shelves: dict[str, HlsShelf] = {}

    async def play_hls(self, server: ServerState, words: Mapping[str, str], request: Request) -> Response:
        server.client.check_view(words["view"])
        shelf = self._shelves.get(words["view"]) or self._begin(server, words["view"])
        try:
            async with asyncio.timeout(FIRST_PICTURE_S):
                await shelf.begun.wait()
        except TimeoutError:
            raise Overloaded("there is no picture yet; ask again") from None
        asked = request.scope["query_string"].decode("latin-1")
        query = f"?{asked}" if asked else ""
        return Response(shelf.playlist(query), media_type=PLAYLIST, headers=FRESH)

    async def play_segment(self, server: ServerState, words: Mapping[str, str], body: None) -> Response:
        server.client.check_view(words["view"])
        shelf = self._shelves.get(words["view"])
        if shelf is None:
            server.hub.live_sessions.find_view(words["view"])  # raises where there is no such session
            raise Overloaded("ask for live.m3u8 first; segments are made while somebody does")
        return Response(shelf.segment(words["segment"]), media_type=FRAGMENT)

    def _begin(self, server: ServerState, view: str) -> HlsShelf:
        shelf = self._shelves[view] = HlsShelf(server.hub.live_sessions.find_view(view))
        server.hub.spawn(self._attend(view, shelf))
        return shelf

    async def _attend(self, view: str, shelf: HlsShelf) -> None:
        """Run a shelf; keep it for a while after the end, so that it can be played to its end."""
        try:
            await shelf.run()
        finally:
            asyncio.get_running_loop().call_later(UNASKED_S if shelf.ended else 0, self._shelves.pop, view)


def endpoints() -> list[Endpoint]:
    shelves = HlsShelves()
    outputs = "/v1/sessions/{session}/outputs"
    view = f"{VIEWS}{{view}}"
    return [
        Endpoint(
            method="POST", path=outputs, does=start_output, body=OutputAsk, answer=OutputInfo, status=201,
            says="Send its pictures to an RTMP or SRT address, a virtual camera or by NDI, where "
                 "--allow-output lets it.",
        ),
        Endpoint(method="GET", path=outputs, does=list_outputs, answer=OutputList, says="Its outputs, and how they do."),
        Endpoint(method="DELETE", path=f"{outputs}/{{output}}", does=stop_output, status=204, says="End an output."),
        Endpoint(
            method="GET", path=f"{view}/live.mjpg", does=play_mjpeg, reads_itself=True, media_type="multipart/x-mixed-replace",
            says="The pictures as they come, for players and browsers; also with ?api_key=KEY.",
        ),
        Endpoint(
            method="GET", path=f"{view}/live.m3u8", does=shelves.play_hls, reads_itself=True, media_type=PLAYLIST,
            says="The same as HLS, for players; also with ?api_key=KEY.",
        ),
        Endpoint(
            method="GET", path=f"{view}/{{segment}}", does=shelves.play_segment, media_type=FRAGMENT,
            says="What live.m3u8 names: init.mp4, N.m4s.",
        ),
    ]  # fmt: skip
