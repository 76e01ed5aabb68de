"""Clips as OpenAI's clients ask for them: `POST /v1/videos`, ask again until it is `completed`, fetch its
content.

A clip is a session like any other, through the same admission and under the same limits: recorded at the
model's own frame rate, however fast the device is, and ended after the whole chunks that hold it. It may wait
in line, and nobody need watch it. What is known of clips is bounded (`MAX_VIDEOS`, and `MAX_UNFINISHED` of
one client) and forgotten with the server; files stay.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from millstream.core.client_messages import Ask, ProtocolError
from millstream.core.config import chunks_for
from millstream.core.errors import MillstreamError, Overloaded, UnknownFile, UnknownSession
from millstream.core.keys import Key
from millstream.core.schedule import even_steps
from millstream.server.access.shares import Quota
from millstream.server.protocol.bodies import json_response
from millstream.server.protocol.endpoints import Endpoint, ServerState, status_of
from millstream.server.protocol.forms import read_fields
from millstream.server.sessions.live_session import LiveSession
from millstream.serving.notices import Ended, Waiting

MAX_VIDEOS = 256
"""Most videos that are remembered; the oldest finished one is forgotten first."""
MAX_UNFINISHED = 8
"""Most unfinished videos of one client; all together may have an eighth more, or one."""
MAX_SECONDS = 600
DEFAULT_SECONDS = 4
MAX_STEPS = 16
REFERENCE = "input_reference"

Status = Literal["queued", "in_progress", "completed", "failed"]


class VideoAsk(msgspec.Struct, frozen=True, kw_only=True):
    """JSON, or a form. What else is sent means nothing here, and is named in the answer's `left_out`."""

    prompt: str
    model: str | None = None
    seconds: Annotated[int, msgspec.Meta(ge=1, le=MAX_SECONDS)] = DEFAULT_SECONDS
    """Rounded up to whole chunks."""
    size: str | None = None
    """WIDTHxHEIGHT"""
    seed: int | None = None
    num_inference_steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] | None = None


class VideoFailure(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class Video(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["video"] = "video"
    created_at: int
    completed_at: int | None
    expires_at: int | None = None
    status: Status
    progress: int
    """In percent."""
    model: str
    prompt: str
    seconds: str
    size: str
    error: VideoFailure | None
    remixed_from_video_id: str | None = None
    left_out: tuple[str, ...]


class VideoList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[Video, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
    """False: the list has all videos that are remembered."""


class VideoDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: bool = True


class VideoErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class VideoErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """As OpenAI's clients read it."""

    error: VideoErrorBody


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedVideo:
    """One that was asked for."""

    video_id: str
    live_session: LiveSession
    asked: VideoAsk
    size: str
    num_chunks: int
    left_out: tuple[str, ...]
    created_at: float = field(default_factory=time.time)

    @property
    def key(self) -> Key:
        return self.live_session.key

    @property
    def status(self) -> Status:
        status = self.live_session.status
        if not isinstance(status, Ended):
            return "queued" if status is None or isinstance(status, Waiting) else "in_progress"
        if self.live_session.recordings.names and self.num_done >= self.num_chunks:
            return "completed"
        return "failed" if self.live_session.state.name == "closed" else "in_progress"

    @property
    def num_done(self) -> int:
        """Number of its chunks that are done."""
        return 0 if self.live_session.last_chunk is None else self.live_session.last_chunk.index + 1

    @property
    def failure(self) -> VideoFailure | None:
        status = self.live_session.status
        if self.status != "failed" or not isinstance(status, Ended):
            return None
        if self.num_done >= self.num_chunks:
            return VideoFailure(
                code="not_kept", message="nothing of it could be kept; the server's disk may be full"
            )
        return VideoFailure(code=status.cause, message=status.reason)

    @property
    def progress(self) -> int:
        return 100 if self.status == "completed" else min(99, 100 * self.num_done // self.num_chunks)


class Videos:
    def __init__(self) -> None:
        self._clips: OrderedDict[str, AskedVideo] = OrderedDict()

    async def create_video(self, server: ServerState, words: Mapping[str, str], request: Request) -> Video:
        fields = await read_fields(request, server.limits.max_picture_text_bytes, server)
        asked, left_out = _asked(fields, server.hub.card.name)
        picture = _reference(fields.get(REFERENCE))
        server.spend_picture(picture)
        self._check_room(server.client.name)
        hub = server.hub
        stream = server.hub.card.stream
        width, height = _sides(asked.size) if asked.size else (stream.width, stream.height)
        steps = None if asked.num_inference_steps is None else even_steps(asked.num_inference_steps)
        ask = Ask(
            prompt=asked.prompt,
            size=f"{height}x{width}",
            seed=asked.seed,
            steps=steps,
            wait=True,
            unattended="run",
            image=picture,
        )
        hub.archive_of(server.client.key)  # raises where nothing is kept, before there is a session
        num_chunks = chunks_for(round(asked.seconds * stream.fps), stream)
        most = hub.limits.max_chunks
        if most is not None and num_chunks > most:
            raise ProtocolError(
                "bad_message",
                f"seconds must be less: a session may have {most} chunks here, not {num_chunks}",
            )
        client = server.client
        live_session = await hub.open_asked(
            ask,
            client=client.name,
            key=client.key,
            session_id=client.session_to_open(),
            max_chunks=num_chunks,
        )
        live_session.keep_unwatched()
        try:
            live_session.start_recording(stream.fps)
        except MillstreamError:
            live_session.end("its clip could not be kept")
            raise
        clip = AskedVideo(
            video_id=f"video_{secrets.token_urlsafe(16)}", live_session=live_session, asked=asked, size=f"{width}x{height}",
            num_chunks=num_chunks, left_out=left_out,
        )  # fmt: skip
        self._clips[clip.video_id] = clip
        return _shown(clip, server)

    async def list_videos(self, server: ServerState, words: Mapping[str, str], body: None) -> VideoList:
        """All of them, the newest first: a client that were told of more would ask `after` the last, for
        ever."""
        shown = tuple(
            _shown(clip, server) for clip in reversed(self._clips.values()) if clip.key == server.client.key
        )
        first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
        return VideoList(data=shown, first_id=first, last_id=last)

    async def show_video(self, server: ServerState, words: Mapping[str, str], body: None) -> Video:
        return _shown(self._find(server, words), server)

    async def video_content(
        self, server: ServerState, words: Mapping[str, str], request: Request
    ) -> Response:
        clip = self._find(server, words)
        if (variant := request.query_params.get("variant", "video")) != "video":
            raise ProtocolError(
                "bad_message", f"variant must be video, got {variant[:40]!r}: no other is kept"
            )
        if clip.status != "completed":
            raise ProtocolError("bad_state", f"the video is {clip.status}, not completed; ask again later")
        kept = server.archive.store.find("recordings", clip.live_session.recordings.names[-1])
        return FileResponse(kept.path, media_type="video/mp4", filename=f"{clip.video_id}.mp4")

    async def delete_video(self, server: ServerState, words: Mapping[str, str], body: None) -> VideoDeleted:
        clip = self._find(server, words)
        del self._clips[clip.video_id]
        if not clip.live_session.ended:
            clip.live_session.end("its clip was deleted")
        for name in clip.live_session.recordings.names:
            server.archive.store.remove("recordings", name)
        return VideoDeleted(id=clip.video_id)

    async def remix_video(self, server: ServerState, words: Mapping[str, str], body: None) -> Response:
        """Say in OpenAI's words that no video is remixed: 404 would send its client looking for the video."""
        told = "videos are not remixed here; POST /v1/videos with the new prompt makes another one"
        error = VideoErrorBody(message=told, type="invalid_request_error", code="bad_message")
        response = json_response(VideoErrorAnswer(error=error), 405)
        response.headers["Allow"] = ""  # no method is of use at this address
        return response

    def _find(self, server: ServerState, words: Mapping[str, str]) -> AskedVideo:
        clip = self._clips.get(words["video"])
        if clip is None or clip.key != server.client.key:
            raise UnknownSession("there is no such video; the oldest are forgotten, and all with the server")
        return clip

    def _check_room(self, client: str) -> None:
        unfinished = [clip for clip in self._clips.values() if clip.status in ("queued", "in_progress")]
        own = sum(clip.live_session.client == client for clip in unfinished)
        Quota(MAX_UNFINISHED).check("videos", own=own, all=len(unfinished))
        if len(self._clips) >= MAX_VIDEOS:
            del self._clips[next(name for name, clip in self._clips.items() if clip not in unfinished)]


def _asked(fields: dict[str, Any], model: str) -> tuple[VideoAsk, tuple[str, ...]]:
    """Checked; a form's numbers are texts, as OpenAI's `seconds` are in JSON."""
    known = VideoAsk.__struct_fields__
    said = {name: value for name, value in fields.items() if name in known and value not in (None, "")}
    try:
        asked = msgspec.convert(said, VideoAsk, strict=False)
    except msgspec.MsgspecError as error:
        raise ProtocolError("bad_message", f"cannot read the request: {str(error)[:300]}") from None
    if asked.model not in (None, model):
        raise UnknownFile(f"the model {asked.model[:80]!r} does not exist here; there is {model!r}")
    rest = sorted(
        name[:40]
        for name, value in fields.items()
        if name not in known and name != REFERENCE and value not in (None, "", b"", [], {})
    )
    return asked, tuple(rest[:MAX_STEPS])


def _reference(given: Any) -> bytes:
    """Return the picture that a video begins from: a form's file, or of JSON a `data:` address."""
    address = given.get("image_url") if isinstance(given, dict) else given
    if isinstance(address, bytes):
        return address
    if not given:
        return b""
    head, _, data = address.partition(",") if isinstance(address, str) else ("", "", "")
    try:
        if head.startswith("data:"):
            return base64.b64decode(data, validate=True)
    except ValueError:
        pass
    raise ProtocolError(
        "bad_message",
        f'{REFERENCE} is a file of the form, or {{"image_url": "data:image/png;base64,..."}}; addresses are not '
        "fetched, and no files are kept here",
    )


def _sides(size: str) -> tuple[int, int]:
    width, cross, height = size.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal() and len(size) <= 16):
        raise ProtocolError(
            "bad_message", f"size must be WIDTHxHEIGHT, for example 832x480, got {size[:40]!r}"
        )
    return int(width), int(height)


def _shown(clip: AskedVideo, server: ServerState) -> Video:
    status = clip.status
    name = clip.live_session.recordings.names[-1] if clip.live_session.recordings.names else ""
    kept = server.archive.store.get("recordings", name) if status == "completed" else None
    return Video(
        id=clip.video_id,
        created_at=int(clip.created_at),
        completed_at=None if kept is None else int(kept.path.stat().st_mtime),
        status=status,
        progress=clip.progress,
        model=server.hub.card.name,
        prompt=clip.asked.prompt,
        seconds=str(clip.asked.seconds),
        size=clip.size,
        error=clip.failure,
        left_out=clip.left_out,
    )


def explain(error: MillstreamError) -> VideoErrorAnswer:
    code, status = status_of(error)
    if isinstance(error, Overloaded) and not error.never:
        kind = "rate_limit_error"
    else:
        kind = "invalid_request_error" if status < 500 else "server_error"
    return VideoErrorAnswer(error=VideoErrorBody(message=str(error), type=kind, code=code))


def endpoints() -> list[Endpoint]:
    videos = Videos()
    one = "/v1/videos/{video}"
    shared: dict[str, Any] = dict(error=VideoErrorAnswer, explain=explain)
    return [
        Endpoint(
            method="POST", path="/v1/videos", does=videos.create_video, body=VideoAsk, reads_itself=True, answer=Video,
            says="OpenAI: a clip; ask for it until it is completed.", **shared,
        ),
        Endpoint(
            method="GET", path="/v1/videos", does=videos.list_videos, answer=VideoList, says="OpenAI: one's clips.", **shared
        ),
        Endpoint(method="GET", path=one, does=videos.show_video, answer=Video, says="OpenAI: how a clip stands.", **shared),
        Endpoint(
            method="GET", path=f"{one}/content", does=videos.video_content, reads_itself=True, media_type="video/mp4",
            says="OpenAI: its film.", **shared,
        ),
        Endpoint(
            method="DELETE", path=one, does=videos.delete_video, answer=VideoDeleted, says="OpenAI: end and forget a clip.",
            **shared,
        ),
        Endpoint(
            method="POST", path=f"{one}/remix", does=videos.remix_video, status=405,
            says="OpenAI: not supported; make another video instead.", **shared,
        ),
    ]  # fmt: skip
