"""Krea's HTTP side: the film of a session, by the name its client gave it, and the uploads that this server
does not take.

A film is a recording like any other (docs/protocol.md, "What is kept"), begun with the session where the
server keeps any. It is found again by the client's own name for it, from the same address and with the same
key: a name alone opens nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from millstream.core.errors import MillstreamError, UnknownFile
from millstream.server.access.budgets import ClientAccount
from millstream.server.protocol.bodies import json_response
from millstream.server.protocol.endpoints import Endpoint, ServerState
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession

MAX_FILMS = 256
"""The oldest are forgotten here first; their files stay."""
KEEP_S = 5.0
"""For a recording to be whole whose connection has just closed."""
POLL_S = 0.05
MP4 = "video/mp4"
NO_UPLOADS = "this server takes no files: a stream begins from its prompt, or from a camera"


class KreaError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As Krea's page reads it, over HTTP and on the socket."""

    error: str
    code: str = ""
    change: str = ""
    """Which one was refused."""


def explain_krea(error: MillstreamError) -> KreaError:
    return KreaError(error=str(error))


class Films:
    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[str, str, str], LiveSession] = OrderedDict()

    def begin(self, hub: SessionHub, client: ClientAccount, name: str, live_session: LiveSession) -> None:
        """Record it, where this server keeps recordings."""
        try:
            live_session.start_recording()
        except MillstreamError:
            return
        self._sessions[(client.key.name, client.name, name)] = live_session
        if len(self._sessions) > MAX_FILMS:
            self._sessions.popitem(last=False)

    async def download_video(self, server: ServerState, words: Mapping[str, str], body: None) -> Response:
        """As far as it came: one that still runs is recorded no further."""
        live_session = self._sessions.get((server.client.key.name, server.client.name, words["id"]))
        if live_session is None:
            raise UnknownFile("there is no film of this session; the server needs --data to keep one")
        name = await live_session.recordings.stop() or await _last_recording(live_session)
        kept = server.hub.archive_of(live_session.key).store.find("recordings", name)
        return FileResponse(kept.path, media_type=MP4, filename=kept.path.name)


async def _last_recording(live_session: LiveSession) -> str:
    """The one that ended with its connection, once it is whole."""
    waited_s = 0.0
    while not live_session.recordings.names:
        if waited_s >= KEEP_S:
            raise UnknownFile("nothing of this session was recorded")
        await asyncio.sleep(POLL_S)
        waited_s += POLL_S
    return live_session.recordings.names[-1]


async def refuse_video(server: ServerState, words: Mapping[str, str], request: Request) -> Response:
    """With 200: their page shows what is wrong only then."""
    return json_response(KreaError(error=NO_UPLOADS))


async def refuse_start_frame(server: ServerState, words: Mapping[str, str], request: Request) -> Response:
    return json_response(KreaError(error=NO_UPLOADS))


def endpoints(films: Films) -> list[Endpoint]:
    says = "Krea: says in the page's words that no files are taken."
    return [
        Endpoint(
            method="GET", path="/download_video/{id}", does=films.download_video, media_type=MP4, error=KreaError,
            explain=explain_krea, says="Krea: the film of a session, by the client's own name.",
        ),
        Endpoint(
            method="POST", path="/upload_video", does=refuse_video, body=bytes, reads_itself=True, answer=KreaError, says=says
        ),
        Endpoint(
            method="POST", path="/upload_start_frame", does=refuse_start_frame, body=bytes, reads_itself=True,
            answer=KreaError, says=says,
        ),
    ]  # fmt: skip
