"""SGLang's realtime video: a WebSocket at `/v1/realtime_video/generate`, MessagePack both ways.

    new ── init ──► live ── event, event, … ──► ended, with the connection or after `max_chunks`

A chunk is one `frame_batch` for each picture (one for all where they are raw), then its `chunk_stats`, which
also carry what SGLang has no message for: receipts of events, and notes about fields that mean nothing here
or of what could not be kept. Its Python clients give up at the first `error`, so none is said about an `init`
that only asks for more than there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from millstream.core.client_messages import Ask, ProtocolError
from millstream.core.controls import Receipt, SetPrompt
from millstream.core.errors import MillstreamError
from millstream.core.schedule import even_steps
from millstream.core.server_messages import ErrorMessage
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.dialect import Dialect
from millstream.server.dialects.interpreter import END_ID, Fields, heed, kind_of
from millstream.server.dialects.pictures import picture_of
from millstream.server.dialects.sglang_actions import actions_of
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.transport.websocket_loop import converse
from millstream.serving.notices import Applied, Ended, Noted
from millstream.session.timeline import MAX_WAITING

CONTENT_TYPES = {"webp": "image/webp", "jpeg": "image/jpeg", "raw": "application/x-raw-rgb"}
MAX_STEPS = 16
MAX_NOTES = 32
"""That wait for a chunk; the oldest are forgotten first."""

CHANNELS = 3
ACTIONS = "camera_actions"
NO_GUIDANCE = 1.0

Positive = Annotated[float, msgspec.Meta(gt=0, le=1000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class Init(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    size: str | None = None
    """WIDTHxHEIGHT"""
    fps: Positive | None = None
    seed: int | None = None
    num_inference_steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] | None = None
    max_chunks: Count | None = None
    realtime_causal_sink_size: int | None = None
    realtime_causal_kv_cache_num_frames: int | None = None
    realtime_output_format: Literal["webp", "jpeg", "raw"] | None = None
    """Format of the pictures; without it raw, which is lossless."""
    realtime_output_pacing: bool | None = None
    """True asks for chunks no faster than they play: here they never come faster."""
    guidance_scale: float | None = None
    """Strength of guidance; 1 is none, which a distilled model has."""
    first_frame: Any = None
    condition_inputs: Any = None
    model: str | None = None
    """One server, one model: its name changes nothing."""


class SglangEvent(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    payload: Any = None
    event_id: int | str | None = None


class SglangError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    content: str
    code: str
    event_id: int | str | None = None


class FrameBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="frame_batch"):
    request_id: str
    chunk_index: int
    content_type: str
    num_frames: int
    total_size: int
    """Bytes of the payload."""
    frame_batch_index: int
    num_frame_batches: int
    is_final_frame_batch: bool
    event_id: int | str | msgspec.UnsetType = msgspec.UNSET
    """The last event that shows; their page cuts over to it."""
    format: str
    encoding: str
    width: int
    height: int
    channels: int = CHANNELS
    bytes_per_frame: int
    """Bytes of one decoded frame."""
    raw_size: int | msgspec.UnsetType = msgspec.UNSET
    payload_lengths: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Bytes of each encoded picture, one after the other."""
    payload: bytes


class EventReceipt(msgspec.Struct, frozen=True, kw_only=True):
    event_id: int | str | None
    state: Literal["queued", "applied"]
    chunk_index: int


class ChunkStats(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="chunk_stats"):
    session_id: str
    request_id: str
    chunk_index: int
    event_id: int | str | None
    num_batches: int
    num_frames: int
    raw_bytes: int
    """Bytes of the frames that were sent, decoded."""
    ws_payload_bytes: int
    content_type: str
    chunk_total_ms: int
    phases_ms: dict[str, float]
    dropped: int
    """Chunks whose pictures this client was too slow for."""
    receipts: tuple[EventReceipt, ...]
    notes: tuple[str, ...]


def routes() -> list[BaseRoute]:
    async def generate(websocket: WebSocket) -> None:
        await converse(websocket, SGLang)

    return [WebSocketRoute("/v1/realtime_video/generate", generate)]


class SGLang(Dialect):
    first_message = "init"

    def __init__(
        self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None
    ) -> None:
        super().__init__(hub, outbox, limits, client)
        self._event_ids: dict[str, int | str] = {}
        """Event ids by control; of more than may wait, the oldest is dropped."""
        self._event_id: int | str | None = None
        """Id of the last event that shows."""
        self._receipts: list[EventReceipt] = []
        self._notes: deque[str] = deque(maxlen=MAX_NOTES)

    async def on_message(self, data: str | bytes) -> None:
        control_id = ""
        try:
            fields = await self._interpreter.read_msgpack(data)
            control_id = self._id_of(fields)
            match kind_of(fields):
                case "init":
                    await self._init(fields)
                case "event" if not self._interpreter.live:
                    raise ProtocolError("bad_state", "say init first")
                case "event":
                    event, unknown = heed(fields, SglangEvent)
                    self._note_left_out(unknown)
                    await self._event(event, control_id)
                case _:
                    raise ProtocolError("bad_message", 'type must be "init" or "event"')
        except MillstreamError as error:
            self._interpreter.refuse(error, control_id)

    def encode(self, item: Any) -> list[bytes]:
        match item:
            case EncodedChunk():
                return [msgspec.msgpack.encode(message) for message in self._chunk(item)]
            case Receipt():
                self._note_receipt(item)
            case Applied(receipts=receipts):
                for receipt in receipts:
                    self._note_receipt(receipt)
            case ErrorMessage(code=code, message=message, control_id=control_id):
                event_id = self._event_ids.pop(control_id, None)
                return [msgspec.msgpack.encode(SglangError(content=message, code=code, event_id=event_id))]
            case Noted(words=words):
                self._notes.append(words)
            case Ended(cause=cause, reason=reason) if cause not in ("stopped", "limit"):
                return [msgspec.msgpack.encode(SglangError(content=reason, code=cause))]
        return []

    async def _init(self, fields: Fields) -> None:
        init, unknown = heed(fields, Init)
        ask = Ask(
            prompt=init.prompt,
            size=None if init.size is None else _height_first(init.size),
            fps=init.fps,
            seed=init.seed,
            steps=None if init.num_inference_steps is None else even_steps(init.num_inference_steps),
            window=init.realtime_causal_kv_cache_num_frames,
            sink=init.realtime_causal_sink_size,
            image=await picture_of(self._interpreter, "first_frame", init.first_frame, self._notes.append),
        )
        if not await self._interpreter.start(
            ask, init.realtime_output_format or "raw", max_chunks=init.max_chunks
        ):
            return
        guided = () if init.guidance_scale in (None, NO_GUIDANCE) else ("guidance_scale",)
        self._note_left_out(tuple(sorted((*guided, *unknown))))
        if init.condition_inputs:
            self._notes.append("condition_inputs mean nothing here and were left out")

    async def _event(self, event: SglangEvent, control_id: str) -> None:
        if event.kind == "heartbeat":  # that it is still there
            return
        payload = event.payload
        several = payload if event.kind == "composite_input" and isinstance(payload, dict) else {}
        actions = payload if event.kind == ACTIONS else several.get(ACTIONS)
        if actions is not None:
            await self._act(actions, "" if several.get("prompt") else control_id)
        if event.kind == ACTIONS or (actions is not None and several.get("prompt") is None):
            return
        await self._interpreter.steer(SetPrompt(id=control_id, prompt=self._prompt(event), mode="recompute"))

    async def _act(self, payload: Any, control_id: str) -> None:
        """Keys that are held from now on; to a model that takes none, once a note."""
        keys = self._hub.card.takes.keys
        if keys:
            await self._interpreter.steer(actions_of(payload, keys, control_id))
        elif self._interpreter.unsaid((ACTIONS,)):
            self._notes.append(f"this model takes no {ACTIONS}; the stream goes on as it was")

    def _prompt(self, event: SglangEvent) -> str:
        """Return the prompt of an event; note what else it asks for, or refuse it where that is all."""
        payload = event.payload
        prompt = payload.get("prompt") if isinstance(payload, dict) else payload
        composite = event.kind == "composite_input" and isinstance(payload, dict) and prompt is not None
        if event.kind != "prompt" and not composite:
            raise ProtocolError(
                "bad_control", f"this model takes no {event.kind[:40]}; the stream goes on as it was"
            )
        if not isinstance(prompt, str):
            raise ProtocolError("bad_control", 'the payload of a prompt event is a text, or {"prompt": TEXT}')
        if composite:
            self._note_left_out(
                tuple(str(name)[:40] for name in payload if name not in ("prompt", "input_types", ACTIONS))
            )
        return prompt

    def _id_of(self, fields: Fields) -> str:
        """Read the id of an event, even if the rest is wrong, so the error can name it; empty if none."""
        event_id = fields.get("event_id")
        if isinstance(event_id, bool) or not isinstance(event_id, (int, str)) or kind_of(fields) != "event":
            return ""
        control_id = str(event_id)
        self._interpreter.limits.check_id(control_id)
        self._remember(control_id, event_id)
        return control_id

    def _remember(self, control_id: str, event_id: int | str) -> None:
        self._event_ids[control_id] = event_id
        if len(self._event_ids) > MAX_WAITING:
            del self._event_ids[next(iter(self._event_ids))]

    def _chunk(self, picture: EncodedChunk) -> Iterator[FrameBatch | ChunkStats]:
        live_session = self._interpreter.conversation.live_session
        assert live_session is not None, "a picture came before there was a session"
        config = live_session.request.config
        chunk = picture.chunk
        request_id = f"{live_session.session_id}_{chunk.index}"
        frame_bytes = config.height * config.width * CHANNELS
        batches = list(self._batches(picture, request_id, (config.width, config.height)))
        yield from batches
        num_frames = sum(batch.num_frames for batch in batches)
        receipts = tuple(self._receipts)
        self._receipts = []
        notes = tuple(self._notes)
        self._notes.clear()
        yield ChunkStats(
            session_id=live_session.session_id,
            request_id=request_id,
            chunk_index=chunk.index,
            event_id=self._event_id,
            num_batches=len(batches),
            num_frames=chunk.num_frames,
            raw_bytes=num_frames * frame_bytes,
            ws_payload_bytes=picture.num_bytes,
            content_type=CONTENT_TYPES[picture.format],
            chunk_total_ms=round(chunk.timing.total_ms),
            phases_ms=dict(chunk.timing.phases_ms),
            dropped=picture.dropped,
            receipts=receipts,
            notes=notes,
        )

    def _batches(self, picture: EncodedChunk, request_id: str, size: tuple[int, int]) -> Iterator[FrameBatch]:
        chunk = picture.chunk
        parts = picture.parts
        is_raw = picture.format == "raw"
        if is_raw and parts:
            parts = (b"".join(parts),)
        width, height = size
        for number, part in enumerate(parts):
            yield FrameBatch(
                request_id=request_id,
                chunk_index=chunk.index,
                content_type=CONTENT_TYPES[picture.format],
                num_frames=chunk.num_frames if is_raw else 1,
                total_size=len(part),
                frame_batch_index=number,
                num_frame_batches=len(parts),
                is_final_frame_batch=number == len(parts) - 1,
                event_id=msgspec.UNSET if self._event_id is None else self._event_id,
                format="rgb24" if is_raw else picture.format,
                encoding=picture.format,
                width=width,
                height=height,
                bytes_per_frame=height * width * CHANNELS,
                raw_size=len(part) if is_raw else msgspec.UNSET,
                payload_lengths=msgspec.UNSET if is_raw else (len(part),),
                payload=part,
            )

    def _note_left_out(self, names: tuple[str, ...]) -> None:
        """Told with the next chunk, once."""
        self._notes.extend(
            f"{name} means nothing here and was left out" for name in self._interpreter.unsaid(names)
        )

    def _note_receipt(self, receipt: Receipt) -> None:
        if receipt.control_id == END_ID:
            return
        known = self._event_ids.get(receipt.control_id)
        if receipt.state == "applied" and known is not None:
            self._event_id = self._event_ids.pop(receipt.control_id)
        self._receipts.append(
            EventReceipt(event_id=known, state=receipt.state, chunk_index=receipt.chunk_index)
        )


def _height_first(size: str) -> str:
    width, _, height = size.lower().partition("x")
    return f"{height}x{width}"
