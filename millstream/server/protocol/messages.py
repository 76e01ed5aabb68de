"""The native protocol's messages as the server reads and writes them. Knows no sockets and no sessions.

They are `core/client_messages.py` and `core/server_messages.py`. Decoding is strict: an unknown field, type
or version is refused in one line that says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.client_messages import (
    FORMATS,
    VERSION,
    AnyClientMessage,
    Code,
    Format,
    Opening,
    ProtocolError,
)
from millstream.core.config import pixel_frames
from millstream.core.errors import (
    MillstreamError,
    NotAllowed,
    NotKept,
    Overloaded,
    UnknownFile,
    UnknownSession,
)
from millstream.core.server_messages import ChunkHeader, Defaults, ServerMessage
from millstream.server.access.limits import ClientLimits
from millstream.server.sessions.outbox import EncodedChunk
from millstream.session.pacing import Pace

if TYPE_CHECKING:  # a gateway reads messages too, and has no model
    from millstream.server.sessions.model_card import ModelCard

MAX_FORMATS = 16
LIMITS = ClientLimits()


class _Envelope(msgspec.Struct, frozen=True):
    """As much of a message as its version needs."""

    type: str = ""
    version: Any = None


class _Named(msgspec.Struct, frozen=True):
    id: str = ""


class _Controlling(msgspec.Struct, frozen=True):
    """As much of a message as says which control it is about."""

    control: _Named


_ENVELOPES = msgspec.json.Decoder(_Envelope)
_CONTROLLING = msgspec.json.Decoder(_Controlling)
_MESSAGES: msgspec.json.Decoder[AnyClientMessage] = msgspec.json.Decoder(AnyClientMessage)
OPENINGS = ("start", "attach", "view", "restore")


def decode(text: str | bytes, limits: ClientLimits = LIMITS) -> AnyClientMessage:
    """One message. Raises `ProtocolError` with what is wrong, the version first, and with the id of a
    control."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    limits.check_json(data)
    try:
        with _refusing():
            envelope = _ENVELOPES.decode(data)
            if envelope.type in OPENINGS:
                _check_version(envelope.version)
            return _MESSAGES.decode(data)
    except ProtocolError as error:
        error.control_id = _control_id_in(data)[: limits.max_id_length]
        raise


def _control_id_in(data: bytes) -> str:
    """Return the `id` of an invalid control; empty if even that cannot be read."""
    try:
        return _CONTROLLING.decode(data).control.id
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""


def read_opening(fields: dict[str, Any]) -> Opening:
    """Read a first message that came as part of another and is parsed already."""
    if fields.get("type") not in OPENINGS:
        raise ProtocolError("bad_state", f"an offer begins with one of {', '.join(OPENINGS)}")
    _check_version(fields.get("version"))
    with _refusing():
        opening: Opening = msgspec.convert(fields, Opening)
        return opening


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError("bad_message", f"cannot read the message: {str(error)[:300]}") from None


def _check_version(version: Any) -> None:
    if version != VERSION:
        raise ProtocolError(
            "bad_version", f'say "version": {VERSION}; this server speaks no other, got {version!r:.40}'
        )


def code_of(error: MillstreamError, otherwise: Code) -> Code:
    """Return the code of an error; `otherwise` where none of its own fits."""
    match error:
        case ProtocolError(code=code):
            return code
        case Overloaded():
            return "refused"
        case NotKept():
            return "not_kept"
        case NotAllowed():
            return "read_only"
        case UnknownSession() | UnknownFile():
            return "not_found"
    return otherwise


def choose_format(wanted: Sequence[str]) -> Format:
    """Return the first format that is known: a client may name formats of later versions."""
    chosen = next((format for name in wanted[:MAX_FORMATS] for format in FORMATS if format == name), None)
    if chosen is None:
        raise ProtocolError("bad_message", f"formats must name one of {', '.join(FORMATS)}")
    return chosen


def defaults_of(card: ModelCard) -> Defaults:
    """Return the settings of a session where its client names none."""
    stream = card.stream
    pace = Pace(fps=stream.fps, chunk_frames=pixel_frames(1, stream.frames_per_chunk), lead_s=card.lead_s)
    return Defaults(
        size=f"{stream.height}x{stream.width}",
        fps=stream.fps,
        steps=stream.steps,
        first_steps=stream.first_steps,
        window=stream.window,
        sink=stream.sink,
        lead_s=pace.max_ahead_s,
        noise_scale=stream.noise_scale,
        seed=stream.seed,
    )


def encode(message: msgspec.Struct) -> str:
    return msgspec.json.encode(message).decode()


def with_header(header: ServerMessage, *parts: bytes) -> bytes:
    """A binary message: the header's length, the header, the payload."""
    head = msgspec.json.encode(header)
    return b"".join((struct.pack("<I", len(head)), head, *parts))


def picture_bytes(picture: EncodedChunk) -> bytes:
    chunk = picture.chunk
    header = ChunkHeader(
        index=chunk.index,
        epoch=chunk.epoch,
        media_s=chunk.media_s,
        fps=chunk.fps,
        frames=chunk.num_frames,
        format=picture.format,
        sizes=tuple(len(part) for part in picture.parts),
        prompts=chunk.prompts,
        unknown=chunk.unknown,
        understood=dict(chunk.understood),
        receipts=chunk.receipts,
        total_ms=chunk.timing.total_ms,
        phases_ms=dict(chunk.timing.phases_ms),
        late_s=chunk.late_s,
        dropped=picture.dropped,
    )
    return with_header(header, *picture.parts)
