"""Pictures to begin from as other people's clients send them: bytes, base64, a `data:` address, or one of
these in a map. Knows no dialect.

Addresses of the web are not fetched: a server that fetches what it is told to can be told to fetch anything.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from millstream.core.client_messages import ProtocolError
from millstream.server.dialects.interpreter import Interpreter

NAMES = ("image_url", "url", "b64_json", "image", "data")
"""Fields of a map that hold a picture."""


def from_base64(text: str) -> bytes:
    """Return the bytes of a text in base64, or of a `data:` address."""
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("bad_message", "image is a text, but not in base64") from None


async def picture_of(interpreter: Interpreter, name: str, given: Any, note: Callable[[str], None]) -> bytes:
    """Return the picture of a field; nothing where there is none. One that cannot be had is noted, and the
    stream begins without."""
    while isinstance(given, dict):
        given = next((given[each] for each in NAMES if given.get(each)), None)
        if given is None:
            note(
                f"{name} holds no picture; send its bytes, or base64. The stream begins from the prompt alone"
            )
    if isinstance(given, str) and given.startswith(("http://", "https://", "file:")):
        note(f"{name} is an address, which is not fetched; send the picture's bytes, or base64")
        return b""
    if isinstance(given, str):
        text = given
        return await interpreter.read(len(text), lambda: from_base64(text))
    return given if isinstance(given, bytes) else b""
