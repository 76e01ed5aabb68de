"""Read keys from a configuration, and find the key that a client brought. Knows no protocol, no sessions and
no files."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from millstream.core.config import MAX_FPS, MIN_FPS
from millstream.core.errors import ConfigError
from millstream.core.keys import NAMELESS, Key

SECRET = re.compile(r"[A-Za-z0-9._~-]{8,256}")
"""Secrets that both a header and a WebSocket subprotocol can carry."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
"""Names that a folder may have anywhere: small letters, because some disks know no others."""
MAX_KEYS = 256
MAX_FILE_BYTES = 4096
"""Most bytes of a file with one key in it."""


class KeyTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[keys.NAME]` of a configuration file."""

    key: str | None = None
    key_env: str | None = None
    """A variable that holds it."""
    key_file: str | None = None
    """A file that does."""
    max_sessions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_fps: Annotated[float, msgspec.Meta(ge=MIN_FPS, le=MAX_FPS)] | None = None
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 1.0
    max_snapshots: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_snapshot_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    read_only: bool = False


def key_from(name: str, table: KeyTable) -> Key:
    if not NAME.fullmatch(name):
        raise ConfigError(
            "a key's name has up to 32 small letters, digits, - or _, and begins with none of the last two"
        )
    limits = {
        field: value for field, value in msgspec.structs.asdict(table).items() if not field.startswith("key")
    }
    key = Key(name=name, **limits)
    if key.read_only and key != Key(name=name, read_only=True):
        raise ConfigError("a read-only key opens no sessions; leave its limits out")
    return key


class Keyring:
    """All keys of a server. It remembers their digests, and compares each with whatever is brought, whichever
    fits."""

    def __init__(self) -> None:
        self._keys: dict[bytes, Key] = {}

    @staticmethod
    def of_one(secret: str) -> Keyring:
        """One key for everybody."""
        ring = Keyring()
        ring.add(secret, NAMELESS)
        return ring

    def add(self, secret: str, key: Key) -> None:
        if not SECRET.fullmatch(secret):
            raise ConfigError("an API key must have 8 to 256 letters, digits or any of . _ ~ -")
        if len(self._keys) == MAX_KEYS:
            raise ConfigError(f"a server may have {MAX_KEYS} keys; leave some out")
        other = self._keys.setdefault(_digest(secret), key)
        if other is not key:
            raise ConfigError(f"this is the key of {other.name!r} too; give each its own")

    def add_table(self, name: str, table: KeyTable) -> None:
        self.add(_secret(table), key_from(name, table))

    @property
    def names(self) -> list[str]:
        return [key.name for key in self._keys.values() if key.name]

    @property
    def is_read_only(self) -> bool:
        return all(key.read_only for key in self._keys.values())

    def find(self, brought: Sequence[str]) -> Key | None:
        """Whose one of these is."""
        digests = [_digest(text) for text in brought]
        found = [key for own, key in self._keys.items() for each in digests if hmac.compare_digest(own, each)]
        return found[0] if found else None


def _secret(table: KeyTable) -> str:
    named = [value for value in (table.key, table.key_env, table.key_file) if value is not None]
    if len(named) != 1:
        raise ConfigError("give one of key, key-env and key-file")
    secret = table.key
    if table.key_env is not None:
        secret = os.environ.get(table.key_env)
        if not secret:
            raise ConfigError(f"key-env: the variable {table.key_env} is not set")
    if table.key_file is not None:
        secret = _first_bytes(Path(table.key_file)).strip()
    assert secret is not None
    return secret


def _first_bytes(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(f"key-file: cannot read {path}: {error.strerror}") from None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
