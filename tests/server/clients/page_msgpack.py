"""MessagePack as SGLang's page has it: what its packer writes, and no more than its reader knows.

Its packer has no integers beyond 65,535: larger and negative ones go out as float64. Its reader stops at
signed and 64-bit integers, at float-free maps of more than 65,535 names and at long texts.
"""

from __future__ import annotations

import struct
from typing import Any


def pack(value: Any) -> bytes:
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int() | float():
            return _number(value)
        case str():
            data = value.encode()
            size = len(data)
            head = (
                bytes([0xA0 | size])
                if size < 32
                else bytes([0xD9, size])
                if size < 256
                else b"\xda" + struct.pack(">H", size)
            )
            return head + data
        case bytes():
            size = len(value)
            if size < 2**16:
                return (bytes([0xC4, size]) if size < 256 else b"\xc5" + struct.pack(">H", size)) + value
            return b"\xc6" + struct.pack(">I", size) + value
        case list():
            head = bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdc" + struct.pack(">H", len(value))
            return head + b"".join(pack(each) for each in value)
        case dict():
            head = bytes([0x80 | len(value)]) if len(value) < 16 else b"\xde" + struct.pack(">H", len(value))
            return head + b"".join(pack(name) + pack(each) for name, each in value.items())
    raise TypeError(f"the page packs no {type(value).__name__}")


def _number(value: float) -> bytes:
    if float(value).is_integer():
        whole = int(value)
        if 0 <= whole < 128:
            return bytes([whole])
        if -32 <= whole < 0:
            return bytes([0xE0 | (whole + 32)])
        if 0 <= whole < 256:
            return bytes([0xCC, whole])
        if 0 <= whole < 65536:
            return b"\xcd" + struct.pack(">H", whole)
    return b"\xcb" + struct.pack(">d", value)


FIXED = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I"}
SIZED = {0xC4: (">B", "bin"), 0xC5: (">H", "bin"), 0xC6: (">I", "bin"), 0xD9: (">B", "str"), 0xDA: (">H", "str"),
         0xDC: (">H", "list"), 0xDD: (">I", "list"), 0xDE: (">H", "map")}  # fmt: skip


class PageReader:
    """Raises where the page's own reader would."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self) -> Any:
        byte = self._take(1)[0]
        if byte <= 0x7F:
            return byte
        if byte & 0xE0 == 0xA0:
            return self._sized("str", byte & 0x1F)
        if byte & 0xF0 == 0x80:
            return self._sized("map", byte & 0x0F)
        if byte & 0xF0 == 0x90:
            return self._sized("list", byte & 0x0F)
        if byte in (0xC0, 0xC2, 0xC3):
            return None if byte == 0xC0 else byte == 0xC3
        if byte in FIXED:
            return self._fixed(FIXED[byte])
        if byte in SIZED:
            size, kind = SIZED[byte]
            return self._sized(kind, self._fixed(size))
        raise ValueError(f"the page cannot read byte 0x{byte:02x}")

    def _sized(self, kind: str, size: int) -> Any:
        if kind == "map":
            return {self.read(): self.read() for _ in range(size)}
        if kind == "list":
            return [self.read() for _ in range(size)]
        data = self._take(size)
        return data.decode() if kind == "str" else data

    def _fixed(self, shape: str) -> Any:
        return struct.unpack(shape, self._take(struct.calcsize(shape)))[0]

    def _take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        self._at += size
        return data


def unpack(data: bytes) -> Any:
    return PageReader(data).read()
