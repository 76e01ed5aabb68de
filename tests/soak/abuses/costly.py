"""Bodies and messages that are small to send and dear to read: forms, MessagePack and JSON. Pure.

By name, as large as a server takes them, for tests and for abuse beside a viewer; and smaller ones by chance,
for mutations.
"""

from __future__ import annotations

import random
from collections.abc import Callable

BOUNDARY = "x8x"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
URLENCODED = "application/x-www-form-urlencoded"
END = f"--{BOUNDARY}--\r\n".encode()

Form = tuple[str, bytes]
"""A content type and a body."""


def part(content: bytes = b"sea", name: str = "prompt", *headers: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'.encode()
    return b"\r\n".join((head, *headers, b"", content, b""))


WRONG_END = part(b"1x1", "size") + END
"""End of a form with an invalid `size`: the form opens no session, whatever else it holds."""


def nested_forms(size: int) -> Form:
    """A form in a form in a form."""
    line = b'Content-Type: multipart/mixed; boundary="b%d"\r\n\r\n--b%d\r\n'
    inner = b"".join(line % (number, number) for number in range(size // 60))
    return FORM, part(b"--b\r\n" + inner, "prompt", b"Content-Type: multipart/mixed; boundary=b") + WRONG_END


def header_parameters(size: int) -> Form:
    """Thousands of parameters of one header."""
    many = b"; ".join(b"p%d*%d=UTF-8''%%41" % (number, number) for number in range(size // 20))
    return FORM, part(b"sea", "prompt", b"Content-Type: text/plain; " + many) + WRONG_END


def disposition_parameters(size: int) -> Form:
    many = b"; ".join(b'name*%d="a;b\\"c"' % number for number in range(size // 18))
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; ".encode()
    return FORM, head + many + b"\r\n\r\nsea\r\n" + WRONG_END


def quotes_in_a_header(size: int) -> Form:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="'.encode()
    return FORM, head + b'";' * (size // 2) + b"\r\n\r\n" + WRONG_END


def empty_lines(size: int) -> Form:
    """Before the first part, where a form may say what it likes."""
    return FORM, b"\r\n" * (size // 2) + part() + WRONG_END


def lines_in_a_part(size: int) -> Form:
    return FORM, part(b"\r\n" * (size // 2)) + WRONG_END


def nearly_boundaries(size: int) -> Form:
    return FORM, part(f"\r\n--{BOUNDARY[:-1]}".encode() * (size // 6)) + WRONG_END


def many_parts(size: int) -> Form:
    one = part(b"", "a")
    return FORM, one * (size // len(one)) + WRONG_END


def many_headers(size: int) -> Form:
    return FORM, part(b"sea", "prompt", *[b"X-A: b"] * (size // 8)) + WRONG_END


def folded_header(size: int) -> Form:
    return FORM, part(b"sea", "prompt", b"X-A: b" + b"\r\n b" * (size // 4)) + WRONG_END


def endless_header(size: int) -> Form:
    return FORM, f"--{BOUNDARY}\r\nX-A: ".encode() + b"a" * size


def no_boundary(size: int) -> Form:
    return "multipart/form-data", part(b"sea" * (size // 3)) + WRONG_END


def long_boundary(size: int) -> Form:
    return f"multipart/form-data; boundary={'-' * 2000}", b"-" * size


def boundary_parameters(size: int) -> Form:
    return "multipart/form-data" + "; a=b" * 600 + f"; boundary={BOUNDARY}", lines_in_a_part(size)[1]


def no_end(size: int) -> Form:
    return FORM, part(b"s" * size)


def encoded_part(size: int) -> Form:
    return FORM, part(b"c2Vh\r\n" * (size // 6), "prompt", b"Content-Transfer-Encoding: base64") + WRONG_END


def quoted_part(size: int) -> Form:
    return FORM, part(
        b"=\r\n" * (size // 3), "prompt", b"Content-Transfer-Encoding: quoted-printable"
    ) + WRONG_END


def wrong_letters(size: int) -> Form:
    return FORM, part(
        b"\xff\xfe" * (size // 2), "prompt", b"Content-Type: text/plain; charset=utf-16"
    ) + WRONG_END


def percents(size: int) -> Form:
    return URLENCODED, b"size=1x1&prompt=" + b"%C3%A9" * (size // 6)


def many_fields(size: int) -> Form:
    return URLENCODED, b"&".join([b"a=b"] * (size // 4))


def ampersands(size: int) -> Form:
    return URLENCODED, b"prompt=sea&size=1x1" + b"&" * size


FORMS: dict[str, Callable[[int], Form]] = {
    each.__name__: each
    for each in (
        nested_forms, header_parameters, disposition_parameters, quotes_in_a_header, empty_lines, lines_in_a_part,
        nearly_boundaries, many_parts, many_headers, folded_header, endless_header, no_boundary, long_boundary,
        boundary_parameters, no_end, encoded_part, quoted_part, wrong_letters, percents, many_fields, ampersands,
    )
}  # fmt: skip
"""By name: of about so many bytes."""


def _list_of(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


PACKED = b"\x82\xa4type\xa5event\xa1x"
"""A map of two fields; the second one's value follows."""
PACKS: dict[str, Callable[[int], bytes]] = {
    "empty_lists": lambda size: PACKED + _list_of(size) + b"\x90" * size,
    "empty_maps": lambda size: PACKED + _list_of(size) + b"\x80" * size,
    "lists_of_seven": lambda size: PACKED + _list_of(size // 8) + b"\x97\1\2\3\4\5\6\7" * (size // 8),
    "numbers": lambda size: PACKED + _list_of(size) + b"\1" * size,
    "empty_texts": lambda size: PACKED + _list_of(size) + b"\xa0" * size,
    "floats": lambda size: PACKED + _list_of(size // 9) + b"\xcb\x3f\xf0\0\0\0\0\0\0" * (size // 9),
    "extensions": lambda size: PACKED + _list_of(size // 3) + b"\xd4\5\0" * (size // 3),
    "times": lambda size: PACKED + _list_of(size // 6) + b"\xd6\xff\0\0\0\1" * (size // 6),
    "names": lambda size: b"\xdf" + (size // 6).to_bytes(4, "big") + b"".join(b"\xa4%04x\1" % n for n in range(size // 6)),
    "same_hash": lambda size: PACKED + b"\xdf" + (size // 10).to_bytes(4, "big")
    + b"".join(b"\xcf" + (n * (2**61 - 1) % 2**64).to_bytes(8, "big") + b"\1" for n in range(size // 10)),
    "deep_lists": lambda size: PACKED + b"\x91" * size,
    "deep_maps": lambda size: PACKED + b"\x81\xa1a" * (size // 3),
    "deep_pairs": lambda size: PACKED + b"\x92\x90" * (size // 2),
    "announced": lambda size: PACKED + b"\xdd\xff\xff\xff\xff" + b"\x90" * size,
    "long_binary": lambda size: PACKED + b"\xc6\xff\xff\xff\xff" + bytes(size),
    "long_extension": lambda size: PACKED + b"\xc9\xff\xff\xff\xff\5" + bytes(size),
    "no_such_type": lambda size: PACKED + b"\xc1" * size,
}  # fmt: skip
"""MessagePack by name: of about so many bytes."""

TEXTS: dict[str, Callable[[int], bytes]] = {
    "empty_lists": lambda size: _json(b",".join([b"[]"] * (size // 3))),
    "empty_maps": lambda size: _json(b",".join([b"{}"] * (size // 3))),
    "numbers": lambda size: _json(b",".join([b"1"] * (size // 2))),
    "empty_texts": lambda size: _json(b",".join([b'""'] * (size // 3))),
    "names": lambda size: (
        b'{"type":"event",' + b",".join(b'"%05x":1' % number for number in range(size // 10)) + b"}"
    ),
    "deep_lists": lambda size: _json(b"[" * (size // 2) + b"]" * (size // 2)),
    "deep_maps": lambda size: b'{"a":' * (size // 5),
    "commas": lambda size: _json(b"," * size),
    "quotes": lambda size: _json(b'"' * size),
    "backslashes": lambda size: _json(b'"' + b"\\" * size + b'"'),
    "escapes": lambda size: _json(b'"' + b"\\u00e9" * (size // 6) + b'"'),
    "escaped_quotes": lambda size: _json(b'"' + b'\\"' * (size // 2) + b'"'),
    "digits": lambda size: _json(b"1" * size),
    "decimals": lambda size: _json(b"0." + b"1" * size),
}
"""JSON by name: of about so many bytes."""


def _json(value: bytes) -> bytes:
    return b'{"type":"event","x":[' + value + b"]}"


def a_form(chance: random.Random) -> Form:
    """One of a size that a hundred others may follow."""
    content_type, body = chance.choice(list(FORMS.values()))(chance.choice((60, 600, 6000, 20_000)))
    return (content_type if chance.random() < 0.9 else content_type.partition(";")[0]), body


def a_pack(chance: random.Random) -> bytes:
    return chance.choice(list(PACKS.values()))(chance.choice((10, 100, 1000, 10_000)))


def a_text(chance: random.Random) -> str:
    return chance.choice(list(TEXTS.values()))(chance.choice((10, 100, 1000, 10_000))).decode()
