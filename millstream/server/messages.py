"""The native protocol's messages, both ways, as in docs/protocol.md. Knows no sockets and no sessions.

Decoding is strict: an unknown field, type or version is refused in one line that says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from millstream.core.config import pixel_frames
from millstream.core.controls import AnyControl, Receipt, WeightedPrompt
from millstream.core.errors import MillstreamError
from millstream.runtime.pacing import Pace
from millstream.server.asking import Ask
from millstream.server.encoding import FORMATS, Format
from millstream.server.hub import ModelCard
from millstream.server.outbox import Picture

VERSION = 1
Code = Literal[
    "bad_message", "bad_version", "bad_state", "refused", "bad_control", "not_found", "too_large", "too_fast", "read_only",
    "not_kept", "failed",
]  # fmt: skip
MAX_FORMATS = 16
MAX_CHUNK = 2**53
"""Whole numbers that every JSON reader keeps as they are."""


class ProtocolError(MillstreamError):
    """Something a client asked for that cannot be; its connection goes on."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of what a client says."""


class Start(Ask, frozen=True, kw_only=True, tag_field="type", tag="start"):
    version: Literal[1]
    formats: tuple[str, ...] = ("jpeg",)


class Attach(ClientMessage, frozen=True, kw_only=True, tag="attach"):
    version: Literal[1]
    session: str
    formats: tuple[str, ...] = ("jpeg",)


class View(ClientMessage, frozen=True, kw_only=True, tag="view"):
    version: Literal[1]
    view: str
    formats: tuple[str, ...] = ("jpeg",)


class Restore(ClientMessage, frozen=True, kw_only=True, tag="restore"):
    version: Literal[1]
    snapshot: str
    formats: tuple[str, ...] = ("jpeg",)


class Steer(ClientMessage, frozen=True, kw_only=True, tag="control"):
    control: AnyControl
    at_chunk: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK)] | None = None


class Record(ClientMessage, frozen=True, kw_only=True, tag="record"):
    on: bool


class Save(ClientMessage, frozen=True, kw_only=True, tag="save"):
    pass


class Ping(ClientMessage, frozen=True, kw_only=True, tag="ping"):
    t: float = 0.0


class End(ClientMessage, frozen=True, kw_only=True, tag="stop"):
    pass


Opening = Start | Attach | View | Restore
AnyClientMessage = Start | Attach | View | Restore | Steer | Record | Save | Ping | End


class ServerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what the server says in text."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    size: str
    fps: float
    steps: tuple[float, ...]
    window: int
    sink: int
    lead_s: float
    noise_scale: float
    seed: int


class Hello(ServerMessage, frozen=True, kw_only=True, tag="hello"):
    version: int = VERSION
    model: str
    formats: tuple[Format, ...] = FORMATS
    defaults: Defaults
    limits: dict[str, float]
    examples: tuple[str, ...]


class WaitingMessage(ServerMessage, frozen=True, kw_only=True, tag="waiting"):
    position: int
    expected_wait_s: float | None
    reason: str


class LiveMessage(ServerMessage, frozen=True, kw_only=True, tag="live"):
    session: str
    """Empty for those who only watch."""
    view: str
    format: Format
    config: dict[str, Any]
    paused: bool
    note: str
    journal: str = ""
    """The name its journal has once it has ended; empty where it has none, and for those who only watch."""


class RateMessage(ServerMessage, frozen=True, kw_only=True, tag="rate"):
    """Chunks from the next one on play at another frame rate."""

    fps: float
    lead_s: float
    note: str


class ReceiptMessage(ServerMessage, frozen=True, kw_only=True, tag="receipt"):
    control_id: str
    state: Literal["queued", "applied"]
    chunk_index: int


class Stats(ServerMessage, frozen=True, kw_only=True, tag="stats"):
    continuity: float
    ahead_s: float
    stalled_s: float
    misses: int
    viewers: int
    utilisation: float


class RecordingMessage(ServerMessage, frozen=True, kw_only=True, tag="recording"):
    on: bool
    url: str


class Saved(ServerMessage, frozen=True, kw_only=True, tag="saved"):
    snapshot: str
    bytes: int


class NoteMessage(ServerMessage, frozen=True, kw_only=True, tag="note"):
    """Something to know; the stream goes on."""

    message: str


class Pong(ServerMessage, frozen=True, kw_only=True, tag="pong"):
    t: float


class ErrorMessage(ServerMessage, frozen=True, kw_only=True, tag="error"):
    code: Code
    message: str
    control_id: str = ""
    offer: dict[str, Any] | None = None
    """Of a refused `start`: fields with which it would not be."""


class EndedMessage(ServerMessage, frozen=True, kw_only=True, tag="ended"):
    cause: str
    reason: str


class OpeningHeader(ServerMessage, frozen=True, kw_only=True, tag="init"):
    """Before the bytes that a decoder needs first."""

    format: Format = "mp4"


class ChunkHeader(ServerMessage, frozen=True, kw_only=True, tag="chunk"):
    """Before a chunk's pictures."""

    index: int
    epoch: int
    media_s: float
    fps: float
    frames: int
    format: Format
    sizes: tuple[int, ...]
    prompts: tuple[WeightedPrompt, ...]
    unknown: tuple[str, ...]
    receipts: tuple[Receipt, ...]
    total_ms: float
    phases_ms: dict[str, float]
    late_s: float
    dropped: int


class _Envelope(msgspec.Struct, frozen=True):
    """As much of a message as its version needs."""

    type: str = ""
    version: Any = None


_ENVELOPES = msgspec.json.Decoder(_Envelope)
_MESSAGES: msgspec.json.Decoder[AnyClientMessage] = msgspec.json.Decoder(AnyClientMessage)
_OPENINGS = ("start", "attach", "view", "restore")


def decode(text: str | bytes) -> AnyClientMessage:
    """One message. Raises `ProtocolError` with what is wrong, the version first."""
    try:
        envelope = _ENVELOPES.decode(text)
        if envelope.type in _OPENINGS and envelope.version != VERSION:
            raise ProtocolError(
                "bad_version", f'say "version": {VERSION}; this server speaks no other, got {envelope.version!r:.40}'
            )
        return _MESSAGES.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError("bad_message", f"cannot read the message: {str(error)[:300]}") from None


def choose_format(wanted: Sequence[str]) -> Format:
    """The first that is known: a client may name formats of later versions."""
    chosen = next((format for name in wanted[:MAX_FORMATS] for format in FORMATS if format == name), None)
    if chosen is None:
        raise ProtocolError("bad_message", f"formats must name one of {', '.join(FORMATS)}")
    return chosen


def defaults_of(card: ModelCard) -> Defaults:
    """What a session is where nothing else is said."""
    stream = card.stream
    pace = Pace(fps=stream.fps, chunk_frames=pixel_frames(1, stream.frames_per_chunk), lead_s=card.lead_s)
    return Defaults(
        size=f"{stream.height}x{stream.width}",
        fps=stream.fps,
        steps=stream.steps,
        window=stream.window,
        sink=stream.sink,
        lead_s=pace.max_ahead_s,
        noise_scale=stream.noise_scale,
        seed=stream.seed,
    )


def encode(message: ServerMessage) -> str:
    return msgspec.json.encode(message).decode()


def with_header(header: ServerMessage, *parts: bytes) -> bytes:
    """A binary message: the header's length, the header, the payload."""
    head = msgspec.json.encode(header)
    return b"".join((struct.pack("<I", len(head)), head, *parts))


def picture_bytes(picture: Picture) -> bytes:
    info = picture.info
    header = ChunkHeader(
        index=info.index,
        epoch=info.epoch,
        media_s=info.media_s,
        fps=info.fps,
        frames=info.num_frames,
        format=picture.format,
        sizes=tuple(len(part) for part in picture.parts),
        prompts=info.prompts,
        unknown=info.unknown,
        receipts=info.receipts,
        total_ms=info.total_ms,
        phases_ms=info.phases_ms,
        late_s=info.late_s,
        dropped=picture.dropped,
    )
    return with_header(header, *picture.parts)
