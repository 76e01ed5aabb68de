"""Of which fleet a server is a member, as it is told by a variable of its environment when it is started. Loads no torch."""

from __future__ import annotations

import os

import msgspec

from millstream.core.errors import ConfigError
from millstream.server.access.keys import NAMELESS, Key

MEMBER = "MILLSTREAM_FLEET_MEMBER"


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    secret: bytes
    """That tickets are signed with."""
    replica_id: str
    pool: str
    storage: str
    """Where states are kept: a folder or an fsspec address."""
    node: str = ""
    version: str = ""
    keys: dict[str, Key] = {}
    """By name; what they are spelled like, the gateway knows."""

    @staticmethod
    def from_environment() -> Membership | None:
        text = os.environ.pop(MEMBER, "")  # nobody started from here is a member
        if not text:
            return None
        try:
            return msgspec.json.decode(text, type=Membership)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{MEMBER} is set by a fleet, and this is not what it says: {error}") from None

    def environment(self) -> dict[str, str]:
        return {MEMBER: msgspec.json.encode(self).decode()}

    def key(self, name: str) -> Key:
        return self.keys.get(name, NAMELESS)
