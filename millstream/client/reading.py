"""Encoding of what a client sends, decoding of what it gets (`core/server_messages.py`). Knows no sockets.

A picture message is a little-endian length, a header of that length, and the parts of its payload, one after
another.
"""

from __future__ import annotations

import struct

import msgspec

from millstream.client.chunk import ClientChunk
from millstream.core.client_messages import AnyClientMessage
from millstream.core.errors import ProtocolBroken
from millstream.core.server_messages import Header, OpeningHeader, Told

_LENGTH = struct.Struct("<I")
_TOLD: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
_HEADERS: msgspec.json.Decoder[Header] = msgspec.json.Decoder(Header)


Heard = Told | OpeningHeader | ClientChunk


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
    chunk = ClientChunk(header, memoryview(data)[payload_at:])
    if sum(header.sizes) != len(chunk.data):
        raise ProtocolBroken(
            f"chunk {header.index} announces {sum(header.sizes)} bytes of pictures and carries "
            f"{len(chunk.data)}"
        )
    return chunk
