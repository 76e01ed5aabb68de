"""A request's fields, whichever way they were sent: JSON, or a form with or without files. Knows no route.

OpenAI's clients send forms where a field may be a file. A form is read as it comes, a slice at a time, in one
pass and at its client's expense: parts, their headers and all bytes are counted, and a part is never a form
again. Nothing is written anywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import python_multipart
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from millstream.core.client_messages import ProtocolError
from millstream.server.protocol.bodies import decode_json, limited
from millstream.server.protocol.endpoints import ServerState

MAX_FIELDS = 64
MAX_HEADERS = 8
"""Most headers of one part. A browser sends two."""
MAX_HEADER_BYTES = 4096
"""Largest size of one header of a part, and of the request's own content-type."""
SLICE_BYTES = 16 * 2**10
"""That are read before the event loop has its next turn."""
IDENTITY = (b"", b"7bit", b"8bit", b"binary")
"""Encodings of a part that leave its bytes as they are; forms know no others (RFC 7578, 4.7)."""

logging.getLogger("python_multipart").setLevel(
    logging.ERROR
)  # what is wrong with a form is told to its client, not logged


async def read_fields(request: Request, max_bytes: int, server: ServerState) -> dict[str, Any]:
    """Texts, and a file's bytes; of JSON what it says."""
    content_type = request.headers.get("content-type", "")
    if len(content_type) > MAX_HEADER_BYTES:
        raise ProtocolError("bad_message", f"content-type may have {MAX_HEADER_BYTES} letters")
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        return await _read_parts(request, max_bytes, server, options.get(b"boundary", b""))
    is_form = kind == b"application/x-www-form-urlencoded"
    most = server.limits.max_text_bytes if is_form else max_bytes  # such a form holds no files
    data = b"".join([piece async for piece in limited(request, most)])
    if is_form:
        return await server.read(len(data), lambda: _urlencoded(data))
    return await server.read(len(data), lambda: decode_json(data, dict[str, Any], server.limits))


def _urlencoded(data: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(data.decode(), max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise _unreadable(error) from None


async def _read_parts(
    request: Request, max_bytes: int, server: ServerState, boundary: bytes
) -> dict[str, str | bytes]:
    try:
        form = _Form(boundary)
        async for piece in limited(request, max_bytes):
            for part in _slices(piece):
                await server.read(len(part), partial(form.feed, part))
                await asyncio.sleep(0)
        return form.finish()
    except (FormParserError, UnicodeError) as error:
        raise _unreadable(error) from None


def _slices(piece: bytes) -> Iterator[bytes]:
    for at in range(0, len(piece), SLICE_BYTES):
        yield piece[at : at + SLICE_BYTES]


def _unreadable(error: Exception) -> ProtocolError:
    return ProtocolError("bad_message", f"cannot read the form: {str(error)[:200] or type(error).__name__}")


class _Form:
    """A form in parts, as it comes."""

    def __init__(self, boundary: bytes) -> None:
        if not boundary:
            raise ProtocolError(
                "bad_message", "multipart/form-data needs its boundary: content-type: ...; boundary=..."
            )
        self._fields: dict[str, str | bytes] = {}
        self._num_parts = 0
        self._is_whole = False
        self._name = b""
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._content = bytearray()
        self._parser = python_multipart.MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._take_name,
                "on_header_value": self._take_value,
                "on_header_end": self._end_header,
                "on_part_data": self._take_content,
                "on_part_end": self._end,
                "on_end": self._note_end,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )

    def feed(self, data: bytes) -> None:
        self._parser.write(data)

    def finish(self) -> dict[str, str | bytes]:
        if not self._is_whole:
            raise ProtocolError("bad_message", "the form ends before its last boundary")
        if not self._fields:
            raise _wrong_parts()
        return self._fields

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_FIELDS:
            raise _wrong_parts()
        self._headers = {}
        self._content = bytearray()

    def _take_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _take_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._name.lower()] = bytes(self._value)
        self._name = b""
        self._value = bytearray()

    def _take_content(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]

    def _end(self) -> None:
        disposition, options = parse_options_header(self._headers.get(b"content-disposition"))
        if disposition != b"form-data" or b"name" not in options:
            raise _wrong_parts()
        kind, _ = parse_options_header(self._headers.get(b"content-type"))
        if kind.startswith(b"multipart/"):
            raise ProtocolError(
                "bad_message", "a part of a form may not be a form itself; send its fields beside the others"
            )
        encoding = self._headers.get(b"content-transfer-encoding", b"").strip().lower()
        if encoding not in IDENTITY:
            raise ProtocolError(
                "bad_message", "a part of a form has no transfer encoding; send its bytes as they are"
            )
        content = bytes(self._content)
        self._fields[options[b"name"].decode()] = content if b"filename" in options else content.decode()

    def _note_end(self) -> None:
        self._is_whole = True


def _wrong_parts() -> ProtocolError:
    return ProtocolError("bad_message", f"a form needs 1 to {MAX_FIELDS} parts, each with its name")
