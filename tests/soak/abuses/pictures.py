"""Pictures as a camera sends them, and some that no camera would: small files that are large once they are
opened."""

from __future__ import annotations

import io
import random
import struct
import zlib
from functools import cache

from PIL import Image


@cache
def _encoded(kind: str, side: int) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 150)).save(held, kind)
    return held.getvalue()


def small_picture(chance: random.Random) -> bytes:
    return _encoded(chance.choice(("JPEG", "PNG", "WEBP")), chance.choice((16, 32, 64)))


@cache
def png_bomb(side: int = 4096) -> bytes:
    """All black, and a thousandth of what it takes once decoded."""
    lines = zlib.compress(bytes(side * (3 * side + 1)), 9)
    return _png(side, side, lines)


@cache
def lying_png(side: int = 64) -> bytes:
    """A small header over far more lines than it announces."""
    return _png(side, side, zlib.compress(bytes(16 * 2**20), 9))


@cache
def commented_png() -> bytes:
    """A picture whose remark alone is large once opened."""
    remark = _piece(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(32 * 2**20), 9))
    whole = _encoded("PNG", 16)
    return whole[:33] + remark + whole[33:]


def _png(width: int, height: int, lines: bytes) -> bytes:
    header = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _piece(b"IHDR", header) + _piece(b"IDAT", lines) + _piece(b"IEND", b"")


def _piece(name: bytes, data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + name + data + struct.pack("!I", zlib.crc32(name + data))
