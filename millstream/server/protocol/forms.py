"""A request's fields, whichever way they were sent: JSON, or a form with or without files. Knows no route.

OpenAI's clients send forms where a field may be a file. Bounded by the body's limit; nothing is written anywhere.
"""

from __future__ import annotations

from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from millstream.core.client_messages import ProtocolError
from millstream.server.protocol.bodies import limited

MAX_FIELDS = 64


async def read_fields(request: Request, max_bytes: int) -> dict[str, Any]:
    """Texts, and a file's bytes; of JSON what it says."""
    data = b"".join([piece async for piece in limited(request, max_bytes)])
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _parts(data, content_type)
    try:
        if kind == "application/x-www-form-urlencoded":
            return dict(parse_qsl(data.decode(), max_num_fields=MAX_FIELDS))
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise ProtocolError("bad_message", f"cannot read the body: {str(error)[:300]}") from None


def _parts(data: bytes, content_type: str) -> dict[str, Any]:
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    try:
        form = BytesParser(policy=HTTP).parsebytes(head + data)
        parts = list(form.iter_parts()) if form.is_multipart() else []
        fields = {part.get_param("name", header="content-disposition"): _value(part) for part in parts[: MAX_FIELDS + 1]}
    except Exception as error:  # a parser of strangers' mail raises what it likes
        raise ProtocolError("bad_message", f"cannot read the form: {str(error)[:200] or type(error).__name__}") from None
    if not 0 < len(parts) <= MAX_FIELDS or not all(isinstance(name, str) for name in fields):
        raise ProtocolError("bad_message", f"a form needs 1 to {MAX_FIELDS} parts, each with its name")
    return {str(name): value for name, value in fields.items()}


def _value(part: Any) -> str | bytes:
    content: bytes = part.get_payload(decode=True) or b""
    return content if part.get_filename() is not None else content.decode()
