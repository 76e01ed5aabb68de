"""Destinations to which a session's frames may be sent: addresses that clients name, held against what the
server's owner allows.

A client that could name any address would have the server connect to machines that only the server reaches,
so nothing is allowed that was not said. Pure text: nothing is looked up, and nothing is connected to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import ConfigError, NotAllowed

SCHEMES = ("rtmp", "rtmps", "srt", "v4l2", "ndi")
LOCAL = re.compile(r"v4l2://video[0-9]{1,3}|ndi://[A-Za-z0-9._-]{1,64}")
"""Destinations of this machine: a virtual camera, or a name that its network sees."""
ADDRESSES = "rtmp://HOST/APP/KEY, rtmps://HOST/APP/KEY, srt://HOST:PORT, v4l2://videoN or ndi://NAME"
ANY_HOST = "*"
PLACE = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]|\*)(?::(?P<port>[0-9]{1,5}))?")
"""Host and port as every parser of addresses splits them off: no user, no backslash, nothing that parsers
could read differently."""
LETTERS = re.compile(r"[!-~]{1,1024}")
SRT_WORDS = {"latency", "mode", "passphrase", "pbkeylen", "streamid"}
"""Allowed options in an SRT address's query; others of FFmpeg's would open files or ports here."""
MAX_PORT = 65_535


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """One that is allowed: a host by one scheme."""

    scheme: str
    host: str
    port: int | None
    """None: any."""

    @staticmethod
    def parse(text: str) -> Destination:
        scheme, _, place = text.partition("://")
        found = PLACE.fullmatch(place.rstrip("/"))
        if scheme not in SCHEMES or found is None or int(found["port"] or 1) not in range(1, MAX_PORT + 1):
            raise ConfigError(
                f"--allow-output takes {', '.join(f'{each}://' for each in SCHEMES)} and a host, such as "
                f"rtmp://live.example.org or srt://*:9000, got {text!r}"
            )
        return Destination(
            scheme=scheme, host=found["host"].lower(), port=int(found["port"]) if found["port"] else None
        )

    def allows(self, other: Destination) -> bool:
        return (
            self.scheme == other.scheme
            and self.host in (ANY_HOST, other.host)
            and self.port in (None, other.port)
        )


def check_address(url: str, allowed: Sequence[Destination]) -> str:
    """Return the address as others may see it: without its path and query, where stream keys are. Raises what
    is wrong with it, in one line."""
    asked = _destination(url)
    name = f"{asked.scheme}://{asked.host}" + (f":{asked.port}" if asked.port else "")
    if not any(each.allows(asked) for each in allowed):
        raise NotAllowed(f"this server does not send to {name}; its owner can say --allow-output {name}")
    return name


def _destination(url: str) -> Destination:
    try:
        parts = urlsplit(url if LETTERS.fullmatch(url) else "")
    except ValueError:
        parts = urlsplit("")
    found = PLACE.fullmatch(parts.netloc)
    if parts.scheme not in SCHEMES or found is None or found["host"] == ANY_HOST:
        raise ProtocolError("bad_message", f"url must be {ADDRESSES}")
    port = int(found["port"]) if found["port"] else None
    if port is not None and not 1 <= port <= MAX_PORT:
        raise ProtocolError("bad_message", f"a port lies between 1 and {MAX_PORT}, got {port}")
    if parts.scheme in ("v4l2", "ndi"):
        _check_local(url)
    else:
        _check_srt(parts.query, port) if parts.scheme == "srt" else _check_rtmp(parts.path)
    return Destination(scheme=parts.scheme, host=found["host"].lower(), port=port)


def _check_local(url: str) -> None:
    if not LOCAL.fullmatch(url):
        raise ProtocolError(
            "bad_message",
            "a virtual camera is v4l2://videoN, a stream by NDI is ndi://NAME, with nothing after it",
        )


def _check_rtmp(path: str) -> None:
    if not all(path.strip("/").partition("/")[::2]):
        raise ProtocolError(
            "bad_message", "an RTMP address names an application and a stream: rtmp://HOST/APP/KEY"
        )


def _check_srt(query: str, port: int | None) -> None:
    words = parse_qsl(query, keep_blank_values=True)
    if port is None:
        raise ProtocolError("bad_message", "an SRT address names a port: srt://HOST:PORT")
    if {name for name, _ in words} - SRT_WORDS or any(
        name == "mode" and value != "caller" for name, value in words
    ):
        known = ", ".join(sorted(SRT_WORDS - {"mode"}))
        raise ProtocolError(
            "bad_message", f"an SRT address may say {known}, and mode=caller: this server calls"
        )
