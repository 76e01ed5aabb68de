"""Membership of a server in a fleet, passed in an environment variable when the server is started. Loads no
torch."""

from __future__ import annotations

import os

import msgspec

from millstream.core.errors import ConfigError, NotAllowed
from millstream.core.keys import NAMELESS, Key
from millstream.server.access.budgets import ClientRates

MEMBER = "MILLSTREAM_FLEET_MEMBER"
RATES = ClientRates(requests=(200.0, 2000.0))
"""Limits per client address, at the gateway and at each replica; all clients of a proxy share one."""


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    secret: bytes
    """Secret that tickets are signed with."""
    replica_id: str
    pool: str
    storage: str
    """Where states are kept: a folder or an fsspec address."""
    node: str = ""
    version: str = ""
    keys: dict[str, Key] = {}
    """Keys by name; their secrets are known to the gateway alone."""

    @staticmethod
    def from_environment() -> Membership | None:
        text = os.environ.pop(MEMBER, "")  # no process started from here is a member
        if not text:
            return None
        try:
            return msgspec.json.decode(text, type=Membership)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{MEMBER} is set by a fleet, and this is not what it says: {error}") from None

    def environment(self) -> dict[str, str]:
        return {MEMBER: msgspec.json.encode(self).decode()}

    def key(self, name: str) -> Key:
        """Return the key of that name. Raises `NotAllowed` for one that was added since this replica was
        started: its sessions would belong to every client."""
        if name and name not in self.keys:
            raise NotAllowed(f"this replica does not know the key {name!r} yet; deploy its replicas anew")
        return self.keys.get(name, NAMELESS)
