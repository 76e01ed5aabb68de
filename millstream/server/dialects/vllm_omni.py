"""vLLM-Omni's streaming video: a WebSocket at `/v1/realtime/video`, JSON both ways and one fragmented MP4 back.

    new ── session.start (within `START_S`) ──► live ── interactions, pings ──► session.done, or an error

Each `video.chunk_metadata` is followed by one binary message; all of them in order are one MP4. An interaction is queued, then
started, active and completed by chunk; one that fails leaves the stream running. No chunk and no ping for `STALL_S` ends it.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.controls import Receipt, SetPrompt
from millstream.core.errors import MillstreamError
from millstream.core.messages import Ask, ErrorMessage, ProtocolError
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.dialect import Dialect
from millstream.server.dialects.interpreter import END_ID, GOOD_ENDS, Fields, heed, kind_of
from millstream.server.dialects.transitions import Transitions
from millstream.server.protocol.messages import encode
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import OpeningBytes
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.transport.websocket_loop import converse
from millstream.serving.notices import Ended, Live, Noted

START_S = 10.0
STALL_S = 60.0

Side = Annotated[int, msgspec.Meta(ge=1, le=2**16)]


class SessionStart(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    model: str | None = None
    format: str = "m4s"
    width: Side | None = None
    height: Side | None = None
    fps: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None
    num_frames: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    """Rounded up to whole chunks; without it there is no end."""
    seed: int | None = None
    image_reference: Any = None


class PromptEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str


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


class VllmError(ServerEvent, frozen=True, kw_only=True, tag="error"):
    message: str
    code: str
    event_id: str | None = None


def routes() -> list[BaseRoute]:
    async def video(websocket: WebSocket) -> None:
        await converse(websocket, VLLMOmni)

    return [WebSocketRoute("/v1/realtime/video", video)]


class VLLMOmni(Dialect):
    first_message = "session.start"

    def __init__(self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None) -> None:
        super().__init__(hub, outbox, limits, client)
        self._request_id = f"video-{secrets.token_urlsafe(8)}"
        self._alive_at = time.monotonic()
        """The last chunk or ping; before there is a session, the connection's beginning."""
        self._transitions = Transitions()
        self._opening = b""
        self._left_out: tuple[str, ...] = ()
        self._num_chunks = 0
        self._stopped = False

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

    async def hear(self, data: str | bytes) -> None:
        try:
            fields = self._interpreter.read_json(data)
            match kind_of(fields):
                case "session.start":
                    await self._start(fields)
                case "session.interaction" if not self._interpreter.live:
                    raise ProtocolError("bad_state", "say session.start first")
                case "session.interaction":
                    await self._interact(fields)
                case "session.ping":
                    self._note_ping()
                case "session.stop":
                    self._stop()
                case _:
                    raise ProtocolError("bad_message", "type must be session.start, .interaction, .ping or .stop")
        except MillstreamError as error:
            self._interpreter.refuse(error)

    def say(self, item: Any) -> list[str | bytes]:
        match item:
            case OpeningBytes(data=data):
                self._opening = data
            case EncodedChunk():
                return self._chunk(item)
            case Receipt(control_id=control_id) if control_id != END_ID:
                return [encode(InteractionQueued(request_id=self._request_id, event_id=control_id))]
            case Live():
                return [encode(VideoStart(request_id=self._request_id, config=self._config(), left_out=self._left_out))]
            case ErrorMessage():
                return [encode(self._error(item))]
            case Noted(words=words):
                return [encode(VllmError(code="not_kept", message=words))]
            case Ended(cause=cause, reason=reason) if cause not in GOOD_ENDS:
                return [encode(VllmError(code="generation_failed", message=reason))]
            case Ended():
                return [encode(Done(request_id=self._request_id, chunks=self._num_chunks, stopped=self._stopped))]
            case ServerEvent():
                return [encode(item)]
        return []

    async def _start(self, fields: Fields) -> None:
        start, unknown = heed(fields, SessionStart)
        if start.format != "m4s":
            raise ProtocolError("bad_message", f'format must be "m4s", got {start.format[:40]!r}')
        if start.model not in (None, "", self._hub.card.name):
            raise ProtocolError("not_found", f"this server has {self._hub.card.name}, not {start.model[:80]!r}")
        card = self._hub.card.stream
        ask = Ask(
            prompt=start.prompt,
            size=f"{start.height or card.height}x{start.width or card.width}",
            fps=start.fps,
            seed=start.seed,
        )
        self._left_out = unknown
        if await self._interpreter.start(ask, "mp4", max_chunks=chunks_for(start.num_frames, card)):
            self._alive_at = time.monotonic()
            if start.image_reference:
                what = "this model takes no image_reference; the stream begins from the prompt alone"
                self._outbox.put(VllmError(code="unsupported_input", message=what))

    async def _interact(self, fields: Fields) -> None:
        try:
            interaction = msgspec.convert(fields.get("interaction"), Interaction)
        except msgspec.MsgspecError as error:
            raise ProtocolError("bad_control", f"cannot read the interaction: {str(error)[:300]}") from None
        event_id, chunks = interaction.event_id or f"event-{secrets.token_urlsafe(6)}", interaction.transition_chunks or 0
        self._interpreter.limits.check_id(event_id)
        if not self._transitions.ask(event_id, max(1, chunks)):
            twice = f"event {event_id[:40]!r} waits already; give each its own id"
            self._outbox.put(VllmError(code="interaction_failed", message=twice, event_id=event_id))
            return
        mode: Literal["blend", "recompute"] = "blend" if chunks else "recompute"
        switch = SetPrompt(id=event_id, prompt=interaction.event.prompt, mode=mode, chunks=max(1, chunks))
        await self._interpreter.steer(switch)

    def _note_ping(self) -> None:
        if self._interpreter.live:
            self._alive_at = time.monotonic()
        self._outbox.put(VllmPong())

    def _stop(self) -> None:
        live_session = self._interpreter.conversation.live_session
        if live_session is None:
            raise ProtocolError("bad_state", "there is no session to stop; say session.start first")
        self._stopped = True
        self._hub.service.end(live_session.session_id)

    def _chunk(self, picture: EncodedChunk) -> list[str | bytes]:
        """Events of a chunk that was left out, because this client is too slow, are told with the next."""
        self._alive_at = time.monotonic()
        self._transitions.advance(receipt.control_id for receipt in picture.info.receipts)
        if not picture.parts:
            return []
        fragment, self._opening = self._opening + b"".join(picture.parts), b""
        events = self._transitions.take()
        metadata = ChunkMetadata(
            request_id=self._request_id,
            transport_chunk_index=self._num_chunks,
            generation_chunk_index=picture.info.index,
            num_frames=picture.info.num_frames,
            byte_length=len(fragment),
            started_event_ids=events.started,
            active_event_ids=events.active,
            completed_event_ids=events.completed,
        )
        self._num_chunks += 1
        return [encode(metadata), fragment]

    def _config(self) -> dict[str, Any]:
        live_session = self._interpreter.conversation.live_session
        assert live_session is not None, "a session went live that nobody asked for"
        return {"model": self._hub.card.name, **asdict(live_session.request.config)}

    def _error(self, said: ErrorMessage) -> VllmError:
        self._transitions.forget(said.control_id)
        failed = said.code == "bad_control" or bool(said.control_id)
        return VllmError(
            code="interaction_failed" if failed else said.code, message=said.message, event_id=said.control_id or None
        )


def chunks_for(num_frames: int | None, stream: StreamConfig) -> int | None:
    """Whole chunks that hold so many frames."""
    if num_frames is None:
        return None
    first, later = (pixel_frames(start, stream.frames_per_chunk) for start in (0, stream.frames_per_chunk))
    return 1 + max(0, -(-(num_frames - first) // later))
