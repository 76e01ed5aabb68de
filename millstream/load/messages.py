"""What a client of `docs/protocol.md` says and hears, as data.

Only what the harness looks at is named; other fields of the server's messages are ignored.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

from millstream.core.controls import AnyControl, Receipt
from millstream.core.errors import ProtocolBroken

VERSION = 1
_LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start", omit_defaults=True):
    version: int
    prompt: str
    fps: float | Literal["auto"]
    seed: int
    formats: tuple[str, ...]
    wait: bool
    size: str | None = None
    lead_s: float | None = None
    strict: bool = False
    """Whether to be refused rather than play slower."""


class Attach(msgspec.Struct, frozen=True, kw_only=True, tag="attach"):
    version: int
    session: str
    formats: tuple[str, ...]


class Steer(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    control: AnyControl


class StopSession(msgspec.Struct, frozen=True, tag="stop"):
    pass


Said = Start | Attach | Steer | StopSession


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    version: int
    model: str
    defaults: dict[str, Any] = {}
    examples: list[str] = []


class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag="waiting"):
    position: int
    reason: str = ""


class Live(msgspec.Struct, frozen=True, kw_only=True, tag="live"):
    session: str
    format: str
    config: dict[str, Any] = {}


class Rate(msgspec.Struct, frozen=True, kw_only=True, tag="rate"):
    fps: float


class Received(msgspec.Struct, frozen=True, kw_only=True, tag="receipt"):
    control_id: str
    state: Literal["queued", "applied"]
    chunk_index: int


class Error(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    code: str
    message: str
    control_id: str | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    cause: str
    reason: str


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    continuity: float | None = None


class Recording(msgspec.Struct, frozen=True, tag="recording"):
    pass


class Saved(msgspec.Struct, frozen=True, tag="saved"):
    pass


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """Something to know; the stream goes on."""

    message: str


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    pass


class Init(msgspec.Struct, frozen=True, kw_only=True, tag="init"):
    """What a decoder must be fed before the first fragment."""


class ChunkHeader(msgspec.Struct, frozen=True, kw_only=True, tag="chunk"):
    index: int
    epoch: int
    media_s: float
    fps: float
    frames: int
    sizes: tuple[int, ...]
    receipts: tuple[Receipt, ...] = ()
    total_ms: float = 0.0


Told = Hello | Waiting | Live | Rate | Received | Error | Ended | Stats | Recording | Saved | Note | Pong
Shown = Init | ChunkHeader
Heard = Told | Shown

_TOLD: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
_SHOWN: msgspec.json.Decoder[Shown] = msgspec.json.Decoder(Shown)


def write(message: Said) -> str:
    return msgspec.json.encode(message).decode()


def read(data: str | bytes) -> Heard:
    """Text is a message; bytes are a header's length, the header and its pictures."""
    try:
        if isinstance(data, str):
            return _TOLD.decode(data)
        (length,) = _LENGTH.unpack_from(data)
        header = _SHOWN.decode(data[_LENGTH.size : _LENGTH.size + length])
    except (msgspec.MsgspecError, struct.error) as error:
        raise ProtocolBroken(f"the server sent what the protocol does not know: {error}") from None
    pictures = len(data) - _LENGTH.size - length
    if isinstance(header, ChunkHeader) and sum(header.sizes) != pictures:
        raise ProtocolBroken(f"chunk {header.index} announces {sum(header.sizes)} bytes of pictures and carries {pictures}")
    return header
