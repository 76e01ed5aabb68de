"""What a client says as text, and what it hears as messages (`core/server_messages.py`). Knows no sockets.

A picture message is a little-endian length, a header of that length, and the parts of its payload, one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from millstream.core.client_messages import AnyClientMessage
from millstream.core.errors import ProtocolBroken
from millstream.core.server_messages import ChunkHeader, Header, OpeningHeader, Told

_LENGTH = struct.Struct("<I")
_TOLD: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
_HEADERS: msgspec.json.Decoder[Header] = msgspec.json.Decoder(Header)


@dataclass(frozen=True, slots=True)
class Pictures:
    """A chunk as it came."""

    header: ChunkHeader
    data: memoryview
    """Its parts, end to end."""

    def parts(self) -> Iterator[memoryview]:
        at = 0
        for size in self.header.sizes:
            yield self.data[at : at + size]
            at += size


Heard = Told | OpeningHeader | Pictures


def write(message: AnyClientMessage) -> str:
    return msgspec.json.encode(message).decode()


def read(data: str | bytes) -> Heard:
    """One message. Raises `ProtocolBroken` where it is none."""
    try:
        if isinstance(data, str):
            return _TOLD.decode(data)
        (length,) = _LENGTH.unpack_from(data)
        payload_at = _LENGTH.size + length
        header = _HEADERS.decode(data[_LENGTH.size : payload_at])
    except (msgspec.MsgspecError, struct.error) as error:
        raise ProtocolBroken(f"the server sent what the protocol does not know: {error}") from None
    if isinstance(header, OpeningHeader):
        return header
    pictures = Pictures(header, memoryview(data)[payload_at:])
    if sum(header.sizes) != len(pictures.data):
        raise ProtocolBroken(
            f"chunk {header.index} announces {sum(header.sizes)} bytes of pictures and carries {len(pictures.data)}"
        )
    return pictures
