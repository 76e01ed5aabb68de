"""Number and depth of the values in a message, counted before a reader makes an object of
each.

A reader of JSON or MessagePack makes an object of every value, keeps the interpreter to itself meanwhile, and
each object is freed again: 2.8 MB of empty lists cost seconds. Counting stops at the first value too many. It
makes nothing, so a message that is refused costs about as much as one that is as large as allowed. What
cannot be read at all is left to the reader, who says what is wrong with it. Knows no message and no client.
"""

from __future__ import annotations

from millstream.core.client_messages import ProtocolError

MAX_ESCAPES = 2**16
"""Backslashes in JSON: eight prompts of the longest kind may consist of nothing else."""
OPENS = b"[{"
NOT_STARTS = bytes(set(range(256)) - set(OPENS + b",:"))
"""Whatever does not begin a value outside of a text: what does begin one follows one of these."""
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_json(data: bytes, *, max_values: int, max_depth: int) -> None:
    """Refuse a JSON text with too many values. A few passes over the bytes, none of them in Python."""
    plain = data
    num_escapes = data.count(b"\\")
    if num_escapes > MAX_ESCAPES:
        raise ProtocolError(
            "too_large", f"a message may hold {MAX_ESCAPES} backslashes; write letters as UTF-8"
        )
    if num_escapes:  # pairs first: then a backslash before a quotation mark makes that part of its text
        plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = plain.split(b'"', 2 * max_values + 1)
    if len(pieces) > 2 * max_values + 1:
        raise _too_many(max_values)
    outside = b"".join(pieces[::2])
    if len(outside.translate(None, NOT_STARTS)) >= max_values:
        raise _too_many(max_values)
    brackets = outside.translate(None, NOT_BRACKETS)
    if len(brackets) <= max_depth:
        return
    depth = 0
    for bracket in brackets[: 2 * max_values]:  # as many as open and close again; what closes more is no JSON
        depth += 1 if bracket in OPENS else -1
        if depth > max_depth:
            raise _too_deep(max_depth)


_LENGTHS = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 1),
    **{0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9},
    **{0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18},
}
"""Bytes of a MessagePack value by its first one, where that says it."""
_SIZED = {
    **{0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)},
    **{0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)},
}
"""Bytes that say how many bytes follow, and how many more there are than that: binaries, texts and
extensions."""
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Bytes that say how many items follow, and values of each: lists and maps."""


def check_msgpack(data: bytes, *, max_values: int, max_depth: int) -> None:
    """Refuse a MessagePack value that holds too many. At most `max_values` steps, however long the message
    is."""
    at = 0
    num_values = 1
    waiting = [1]
    """Values that each list or map around this place has yet to show."""
    while at < len(data):
        while waiting and waiting[-1] == 0:
            waiting.pop()
        if not waiting:
            return
        waiting[-1] -= 1
        first = data[at]
        items = 0
        if first in _COUNTED:
            size, each = _COUNTED[first]
            items = each * int.from_bytes(data[at + 1 : at + 1 + size], "big")
            at += 1 + size
        elif 0x80 <= first < 0xA0:
            items = (first & 0x0F) * (1 if first >= 0x90 else 2)
            at += 1
        elif 0xA0 <= first < 0xC0:
            at += 1 + (first & 0x1F)
        elif first in _SIZED:
            size, more = _SIZED[first]
            at += 1 + size + more + int.from_bytes(data[at + 1 : at + 1 + size], "big")
        else:
            at += _LENGTHS.get(first, 1)
        num_values += items  # also of those that are announced and do not come
        if num_values > max_values:
            raise _too_many(max_values)
        if items:
            waiting.append(items)
            if len(waiting) > max_depth + 1:
                raise _too_deep(max_depth)


def _too_many(max_values: int) -> ProtocolError:
    return ProtocolError(
        "too_large", f"a message may hold {max_values} values, names of fields included; send fewer"
    )


def _too_deep(max_depth: int) -> ProtocolError:
    return ProtocolError("too_large", f"lists and maps of a message may be nested {max_depth} deep")
