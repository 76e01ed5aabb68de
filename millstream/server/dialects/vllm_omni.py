"""vLLM-Omni's streaming video: a WebSocket at `/v1/realtime/video`, JSON both ways and one fragmented MP4
back.

    new ── session.start (within `START_S`) ──► live ── interactions, pings ──► session.done, or an error
     └──── anything that is none, or is refused ──► an error, and the end

Each `video.chunk_metadata` is followed by one binary message; all of them in order are one MP4. An
interaction is queued, then started, active and completed by chunk; one that fails leaves the stream running.
No chunk and no ping for `STALL_S` ends it. Its page gives up at an `error` that names no event, so what is
only to be known is a `session.note`: its client prints it.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from millstream.core.client_messages import MAX_LEAD_S, Ask, ProtocolError
from millstream.core.config import chunks_for
from millstream.core.controls import Receipt, SetPrompt
from millstream.core.errors import MillstreamError
from millstream.core.schedule import even_steps
from millstream.core.server_messages import ErrorMessage
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.dialect import Dialect
from millstream.server.dialects.interpreter import (
    END_ID,
    GOOD_ENDS,
    MAX_NAMES,
    NEUTRAL,
    Fields,
    converted,
    heed,
    kind_of,
)
from millstream.server.dialects.pictures import picture_of
from millstream.server.dialects.transitions import Transitions
from millstream.server.dialects.vllm_omni_camera import CameraAsk, camera_of
from millstream.server.protocol.messages import encode
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.sessions.viewers import OpeningBytes
from millstream.server.transport.websocket_loop import converse
from millstream.serving.notices import Ended, Live, Noted

START_S = 10.0
STALL_S = 60.0

Side = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1000)]
Frames = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
MAX_STEPS = 16
MAX_SECONDS = 86_400
NO_GUIDANCE = 1.0


class VideoParams(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that hold where the message itself does not name them."""

    width: Side | None = None
    height: Side | None = None
    fps: Rate | None = None
    num_frames: Frames | None = None


class SessionStart(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    model: str | None = None
    format: str = "m4s"
    size: Annotated[str, msgspec.Meta(pattern=r"^[1-9]\d{0,4}x[1-9]\d{0,4}$")] | None = None
    """Size as WIDTHxHEIGHT; it comes before `width` and `height`."""
    width: Side | None = None
    height: Side | None = None
    fps: Rate | None = None
    num_frames: Frames | None = None
    """Number of frames, rounded up to whole chunks; without it, and without `seconds`, there is no end."""
    seconds: int | str | None = None
    video_params: VideoParams | None = None
    seed: int | None = None
    num_inference_steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    guidance_scale: float | None = None
    """1 is none, which a distilled model has."""
    image_reference: Any = None
    """Picture to begin from: a map with a `data:` address, or base64."""
    streaming_buffer_seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_LEAD_S)] | None = None
    """How far generation may be ahead."""

    @property
    def video(self) -> VideoParams:
        """Settings that are asked for, in the message itself or in `video_params`."""
        beside = self.video_params or VideoParams()
        width = self.width or beside.width
        height = self.height or beside.height
        if self.size is not None:
            width, height = (int(side) for side in self.size.split("x"))
        return VideoParams(
            width=width,
            height=height,
            fps=self.fps or beside.fps,
            num_frames=self.num_frames or beside.num_frames,
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of known fields that ask for something that is not to be had."""
        steps = ("num_inference_steps",) if (self.num_inference_steps or 0) > MAX_STEPS else ()
        return steps if self.guidance_scale in (None, NO_GUIDANCE) else (*steps, "guidance_scale")


class PromptEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str
    negative_prompt: None = None


class Playback(msgspec.Struct, frozen=True, kw_only=True):
    """Where the viewer is. The server has a clock of its own for that."""

    position_seconds: Annotated[float, msgspec.Meta(ge=0, le=2**53)]


class Interaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    event: PromptEvent
    event_id: str | None = None
    transition_chunks: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what is said in text."""


class VideoStart(ServerEvent, frozen=True, kw_only=True, tag="video.start"):
    request_id: str
    format: Literal["m4s"] = "m4s"
    config: dict[str, Any]
    left_out: tuple[str, ...]
    """Fields that mean nothing here."""


class ChunkMetadata(ServerEvent, frozen=True, kw_only=True, tag="video.chunk_metadata"):
    request_id: str
    kind: Literal["media"] = "media"
    transport_chunk_index: int
    generation_chunk_index: int
    num_frames: int
    byte_length: int
    started_event_ids: tuple[str, ...]
    active_event_ids: tuple[str, ...]
    completed_event_ids: tuple[str, ...]


class InteractionQueued(ServerEvent, frozen=True, kw_only=True, tag="session.interaction.queued"):
    request_id: str
    event_id: str


class VllmPong(ServerEvent, frozen=True, kw_only=True, tag="session.pong"):
    pass


class Done(ServerEvent, frozen=True, kw_only=True, tag="session.done"):
    request_id: str
    chunks: int
    stopped: bool


class VllmNote(ServerEvent, frozen=True, kw_only=True, tag="session.note"):
    """Something to know; the stream goes on."""

    request_id: str
    message: str


class VllmError(ServerEvent, frozen=True, kw_only=True, tag="error", omit_defaults=True):
    message: str
    code: str
    request_id: str | None = None
    event_id: str | None = None


def routes() -> list[BaseRoute]:
    async def video(websocket: WebSocket) -> None:
        await converse(websocket, VLLMOmni)

    return [WebSocketRoute("/v1/realtime/video", video)]


class VLLMOmni(Dialect):
    first_message = "session.start"

    def __init__(
        self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None
    ) -> None:
        super().__init__(hub, outbox, limits, client)
        self._request_id = f"video_stream-{secrets.token_urlsafe(8)}"
        self._alive_at = time.monotonic()
        """The last chunk or ping; before there is a session, the connection's beginning."""
        self._transitions = Transitions()
        self._opening = b""
        self._left_out: tuple[str, ...] = ()
        self._num_chunks = 0
        self._stopped = False
        self._turned_away = False

    @property
    def refusals(self) -> int:
        """Number of messages refused in a row; once its start was refused, more than any may have."""
        return sys.maxsize if self._turned_away else super().refusals

    @property
    def patience_s(self) -> float:
        limit_s = STALL_S if self._interpreter.live else START_S
        return max(0.0, self._alive_at + limit_s - time.monotonic())

    def waited(self) -> bool:
        if self.patience_s > 0:
            return True
        live = self._interpreter.live
        what = f"no chunk and no ping for {STALL_S:g} s" if live else f"no session.start within {START_S:g} s"
        self._outbox.put(VllmError(code="stalled" if live else "start_timeout", message=what))
        return False

    async def on_message(self, data: str | bytes) -> None:
        try:
            fields = await self._interpreter.read_json(data, with_picture=not self._interpreter.live)
            match kind_of(fields):
                case "session.start":
                    await self._start(fields)
                case "session.interaction" if not self._interpreter.live:
                    raise ProtocolError("bad_state", "say session.start first")
                case "session.interaction":
                    await self._interact(fields)
                case "session.ping":
                    self._note_ping()
                case "session.playback":
                    converted(fields, Playback)
                    self._note_sign_of_life()
                case "session.stop":
                    self._stop()
                case _:
                    raise ProtocolError(
                        "bad_message", "type must be session.start, .interaction, .playback, .ping or .stop"
                    )
        except MillstreamError as error:
            self._interpreter.refuse(error)
        self._turned_away = not self._interpreter.live and self._interpreter.refusals > 0

    def encode(self, item: Any) -> list[str | bytes]:
        match item:
            case OpeningBytes(data=data):
                self._opening = data
            case EncodedChunk():
                return self._chunk(item)
            case Receipt(control_id=control_id) if control_id != END_ID:
                return [encode(InteractionQueued(request_id=self._request_id, event_id=control_id))]
            case Live():
                return [encode(event) for event in self._began()]
            case ErrorMessage():
                return [encode(self._error(item))]
            case Noted(words=words):
                return [encode(VllmNote(request_id=self._request_id, message=words))]
            case Ended(cause=cause, reason=reason) if cause not in GOOD_ENDS:
                return [encode(VllmError(code="generation_failed", message=reason))]
            case Ended():
                return [
                    encode(Done(request_id=self._request_id, chunks=self._num_chunks, stopped=self._stopped))
                ]
            case ServerEvent():
                return [encode(item)]
        return []

    async def _start(self, fields: Fields) -> None:
        beside, inner = _with_sampling_params(fields)
        start, unknown = heed(beside, SessionStart)
        if start.format != "m4s":
            raise ProtocolError("bad_message", f'format must be "m4s", got {start.format[:40]!r}')
        if start.model not in (None, "", self._hub.card.name):
            raise ProtocolError(
                "not_found", f"this server has {self._hub.card.name}, not {start.model[:80]!r}"
            )
        card = self._hub.card.stream
        video = start.video
        steps = start.num_inference_steps
        ask = Ask(
            prompt=start.prompt,
            size=f"{video.height or card.height}x{video.width or card.width}",
            fps=video.fps,
            seed=start.seed,
            steps=None if steps is None or steps > MAX_STEPS else even_steps(steps),
            lead_s=start.streaming_buffer_seconds,
            image=await picture_of(self._interpreter, "image_reference", start.image_reference, self._note),
        )
        num_frames = video.num_frames or _frames_in(start.seconds, video.fps or card.fps)
        self._left_out = tuple(dict.fromkeys((*start.left_out, *unknown, *inner)))
        if await self._interpreter.start(
            ask, "mp4", max_chunks=None if num_frames is None else chunks_for(num_frames, card)
        ):
            self._alive_at = time.monotonic()

    async def _interact(self, fields: Fields) -> None:
        asked = fields.get("interaction")
        named = asked.get("event_id") if isinstance(asked, dict) else None
        event_id = named if isinstance(named, str) and named else f"event-{secrets.token_urlsafe(6)}"
        self._interpreter.limits.check_id(event_id)
        try:
            if _is_camera(asked):
                await self._move_camera(converted(asked, CameraAsk), event_id)
                return
            interaction = converted(asked, Interaction)
        except ProtocolError as error:
            self._interpreter.refuse(
                ProtocolError("bad_control", str(error)), event_id if event_id == named else ""
            )
            return
        chunks = interaction.transition_chunks or 0
        if not self._is_new_event(event_id, max(1, chunks)):
            return
        mode: Literal["blend", "recompute"] = "blend" if chunks else "recompute"
        switch = SetPrompt(id=event_id, prompt=interaction.event.prompt, mode=mode, chunks=max(1, chunks))
        await self._interpreter.steer(switch)

    async def _move_camera(self, asked: CameraAsk, event_id: str) -> None:
        """To a model that takes no camera, once a note; the stream goes on."""
        if not self._hub.card.takes.camera:
            if self._interpreter.unsaid(("camera",)):
                self._note("camera: this model takes none; the stream goes on as it was")
            return
        motion = camera_of(asked.event.multi_modal_data.camera, event_id)
        if self._is_new_event(event_id, 1):
            await self._interpreter.steer(motion)

    def _is_new_event(self, event_id: str, chunks: int) -> bool:
        """Return whether no event of this id waits; otherwise its client is told."""
        is_new = self._transitions.ask(event_id, chunks)
        if not is_new:
            twice = f"event {event_id[:40]!r} waits already; give each its own id"
            conflict = VllmError(
                code="event_id_conflict", message=twice, request_id=self._request_id, event_id=event_id
            )
            self._outbox.put(conflict)
        return is_new

    def _note(self, words: str) -> None:
        self._outbox.put(VllmNote(request_id=self._request_id, message=words))

    def _note_ping(self) -> None:
        self._note_sign_of_life()
        self._outbox.put(VllmPong())

    def _note_sign_of_life(self) -> None:
        if self._interpreter.live:
            self._alive_at = time.monotonic()

    def _stop(self) -> None:
        live_session = self._interpreter.conversation.live_session
        if live_session is None:
            raise ProtocolError("bad_state", "there is no session to stop; say session.start first")
        self._stopped = True
        live_session.end()

    def _chunk(self, picture: EncodedChunk) -> list[str | bytes]:
        """Events of a chunk that was left out, because this client is too slow, are told with the next."""
        self._alive_at = time.monotonic()
        self._transitions.advance(receipt.control_id for receipt in picture.chunk.receipts)
        if not picture.parts:
            return []
        fragment = self._opening + b"".join(picture.parts)
        self._opening = b""
        events = self._transitions.pop()
        metadata = ChunkMetadata(
            request_id=self._request_id,
            transport_chunk_index=self._num_chunks,
            generation_chunk_index=picture.chunk.index,
            num_frames=picture.chunk.num_frames,
            byte_length=len(fragment),
            started_event_ids=events.started,
            active_event_ids=events.active,
            completed_event_ids=events.completed,
        )
        self._num_chunks += 1
        return [encode(metadata), fragment]

    def _began(self) -> Iterator[ServerEvent]:
        yield VideoStart(request_id=self._request_id, config=self._config(), left_out=self._left_out)
        if fresh := self._interpreter.unsaid(self._left_out):
            what = f"{', '.join(fresh)}: means nothing here and was left out"
            yield VllmNote(request_id=self._request_id, message=what)

    def _config(self) -> dict[str, Any]:
        live_session = self._interpreter.conversation.live_session
        assert live_session is not None, "a session went live that nobody asked for"
        return {"model": self._hub.card.name, **live_session.config_now()}

    def _error(self, said: ErrorMessage) -> VllmError:
        self._transitions.forget(said.control_id)
        failed = said.code == "bad_control" or bool(said.control_id)
        return VllmError(
            code="interaction_failed" if failed else said.code,
            message=said.message,
            request_id=self._request_id if self._interpreter.live else None,
            event_id=said.control_id or None,
        )


def _is_camera(asked: Any) -> bool:
    event = asked.get("event") if isinstance(asked, dict) else None
    return isinstance(event, dict) and "multi_modal_data" in event


def _with_sampling_params(fields: Fields) -> tuple[Fields, tuple[str, ...]]:
    """Return the fields with those of `sampling_params` moved up beside them, and the names of those in it
    that mean nothing there either."""
    inner = fields.get("sampling_params")
    if not isinstance(inner, dict):
        return fields, ()
    known = {name: value for name, value in inner.items() if name in SessionStart.__struct_fields__}
    rest = sorted(
        str(name)[:40] for name, value in inner.items() if name not in known and value not in NEUTRAL
    )
    beside = {name: value for name, value in fields.items() if name != "sampling_params"}
    return known | beside, tuple(rest[:MAX_NAMES])


def _frames_in(seconds: int | str | None, fps: float) -> int | None:
    """Return the number of frames in so many whole seconds, which OpenAI writes as a text."""
    if seconds is None:
        return None
    whole = (
        int(seconds)
        if isinstance(seconds, int) or (seconds.isascii() and seconds.isdecimal() and len(seconds) < 6)
        else 0
    )
    if not 0 < whole <= MAX_SECONDS:
        raise ProtocolError(
            "bad_message",
            f"seconds must be a whole number from 1 to {MAX_SECONDS}, got {str(seconds)[:40]!r}",
        )
    return round(whole * fps)
