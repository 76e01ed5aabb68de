"""OSC 1.0: packets to messages, messages to packets. Knows no sockets and no controls.

Our own, because of floods and of bad input. Of a message only the address is read until it is known that no
newer one takes its place. A packet is read in bounded time and memory, however its bundles are nested, and
what is cut short or of an unknown type is refused: nothing is guessed, and nothing is logged for each of ten
thousand messages a second. Time tags are not waited for: a change applies at the next chunk that is free.
"""

from __future__ import annotations

import struct

from millstream.core.client_messages import ProtocolError

BUNDLE = b"#bundle\0"
BUNDLE_HEAD = 16
"""Its name and its time tag."""
MAX_PARTS = 256
"""Messages and bundles of one packet."""
MAX_ADDRESS = 128

Argument = int | float | str | bool | None
NUMBERS = {
    "i": struct.Struct(">i"),
    "h": struct.Struct(">q"),
    "f": struct.Struct(">f"),
    "d": struct.Struct(">d"),
}
CONSTANTS: dict[str, Argument] = {"T": True, "F": False, "N": None, "I": True}
TEXT = "sS"
BRACKETS = "[]"
"""Tags of an array: what is in it counts as if it stood there alone."""


def messages(packet: bytes) -> list[tuple[str, bytes]]:
    """Return the addresses of a message or a bundle, each with arguments that are not read yet."""
    if not packet.startswith(BUNDLE):
        return [_addressed(packet)]  # most are
    found: list[tuple[str, bytes]] = []
    rest = [memoryview(packet)]
    for _ in range(MAX_PARTS):
        if not rest:
            return found
        part = rest.pop()
        if part[: len(BUNDLE)] == BUNDLE:
            rest.extend(reversed(_elements(part)))
        else:
            found.append(_addressed(bytes(part)))
    raise ProtocolError("too_large", f"a packet may have {MAX_PARTS - 1} messages and bundles")


def arguments(data: bytes) -> list[Argument]:
    """Return the arguments that follow an address."""
    if not data:
        return []  # old senders leave the types out where there is nothing to type
    tags, at = _text(data, 0)
    if not tags.startswith(","):
        raise ProtocolError("bad_message", "an OSC message needs its types, such as ,f, behind the address")
    given: list[Argument] = []
    for tag in tags[1:]:
        if tag in NUMBERS:
            number = NUMBERS[tag]
            if at + number.size > len(data):
                raise ProtocolError("bad_message", "an OSC message ends before its arguments do")
            given.extend(number.unpack_from(data, at))
            at += number.size
        elif tag in TEXT:
            text, at = _text(data, at)
            given.append(text)
        elif tag in CONSTANTS:
            given.append(CONSTANTS[tag])
        elif tag not in BRACKETS:
            raise ProtocolError(
                "bad_message", f"OSC arguments are numbers, text, true or false; {tag!r} is none of them"
            )
    return given


def message(address: str, *given: int | float | str) -> bytes:
    """The packet of one message."""
    tags = ","
    packed = b""
    for each in given:
        if isinstance(each, str):
            tags = tags + "s"
            packed = packed + _padded(each)
        elif isinstance(each, int):
            tag = "i" if -(2**31) <= each < 2**31 else "h"
            tags = tags + tag
            packed = packed + NUMBERS[tag].pack(each)
        else:
            tags = tags + "f"
            packed = packed + NUMBERS["f"].pack(each)
    return _padded(address) + _padded(tags) + packed


def _elements(bundle: memoryview) -> list[memoryview]:
    at = BUNDLE_HEAD
    found = list[memoryview]()
    while at < len(bundle) and len(found) < MAX_PARTS:  # more are too many, however many they are
        end = at + 4 + int.from_bytes(bundle[at : at + 4], "big")
        if end > len(bundle) or end == at + 4:
            raise ProtocolError("bad_message", "a part of an OSC bundle is empty or cut short")
        found.append(bundle[at + 4 : end])
        at = end
    return found


def _addressed(data: bytes) -> tuple[str, bytes]:
    end = data.find(b"\0", 0, MAX_ADDRESS + 1)
    if end < 0 or not data.startswith(b"/") or not data[:end].isascii():
        raise ProtocolError(
            "bad_message", f"an OSC address begins with / and has up to {MAX_ADDRESS} plain letters"
        )
    return data[:end].decode(), data[_after(end) :]


def _text(data: bytes, at: int) -> tuple[str, int]:
    """A text, and where what follows it begins."""
    end = data.find(b"\0", at)
    if end < 0:
        raise ProtocolError("bad_message", "a text of an OSC message has no end")
    try:
        return data[at:end].decode(), _after(end)
    except UnicodeDecodeError:
        raise ProtocolError("bad_message", "a text of an OSC message is not UTF-8") from None


def _after(end: int) -> int:
    """Texts end with one to four zeros, at a multiple of four."""
    return end + 4 - end % 4


def _padded(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return data + bytes(4 - len(data) % 4)
