"""A WebSocket client that says exactly the bytes it is told to, frames that no library would send among
them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 30.0
TEXT = 1
BINARY = 2
CLOSE = 8
PING = 9
MASK = b"\0\0\0\0"


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """One frame as a client sends it; opcode 0 continues a message."""
    assert len(data) < 126, f"short frames only, got {len(data)} bytes"
    return bytes((opcode | (0x80 if fin else 0), 0x80 | len(data))) + MASK + data


def asking(address: str, path: str = "/v1/stream") -> bytes:
    """The request for a WebSocket."""
    lines = (
        f"GET {path} HTTP/1.1", f"Host: {address}", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
    )  # fmt: skip
    return "\r\n".join((*lines, "", "")).encode()


@contextmanager
def raw_socket(address: str, path: str = "/v1/stream") -> Iterator[socket.socket]:
    """Open, and past the handshake."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(asking(address, path))
        head = b""
        while b"\r\n\r\n" not in head:
            head += _some(connection, 1)
        assert head.startswith(b"HTTP/1.1 101"), head
        yield connection


def close_code(connection: socket.socket) -> tuple[int, str]:
    """Of the close frame that ends it; whatever comes before is passed over."""
    while True:
        opcode, data = _next_frame(connection)
        if opcode == CLOSE:
            return struct.unpack(">H", data[:2])[0], data[2:].decode()


def _next_frame(connection: socket.socket) -> tuple[int, bytes]:
    first, size = _some(connection, 2)
    if size == 126:
        (size,) = struct.unpack(">H", _some(connection, 2))
    elif size == 127:
        (size,) = struct.unpack(">Q", _some(connection, 8))
    return first & 0x0F, _some(connection, size)


def _some(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, "the connection was closed without a word"
        data += piece
    return data
