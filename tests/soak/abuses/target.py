"""Where abuse goes: a server on this machine, and nowhere else. Everything that dials, dials here."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

from millstream.load.loopback import check_loopback

DIAL_S = 10.0
SMALL_BUFFER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    port: int

    @classmethod
    def at(cls, url: str) -> Target:
        """Raises for every address but this machine's own."""
        check_loopback(url)
        parts = urlsplit(url)
        host = "127.0.0.1" if parts.hostname == "localhost" else str(parts.hostname)
        return cls(host, parts.port or 80)

    @property
    def name(self) -> str:
        """As a Host header has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"ws://{self.name}"

    def source(self, chance: random.Random) -> str | None:
        """Somebody else's address, where this machine has more than one: limits are kept for each."""
        if self.host.startswith("127.") and sys.platform == "linux":
            return f"127.{chance.randint(1, 254)}.{chance.randint(0, 255)}.{chance.randint(1, 254)}"
        return None

    async def dial(
        self, source: str | None = None, *, small: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection; a small one holds next to nothing that is not read. Raises `OSError`."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        peer = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            peer.setblocking(False)
            if small:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            if source is not None:
                peer.bind((source, 0))
            await asyncio.wait_for(
                asyncio.get_running_loop().sock_connect(peer, (self.host, self.port)), DIAL_S
            )
            return await asyncio.open_connection(sock=peer, limit=SMALL_BUFFER_BYTES if small else 2**20)
        except BaseException as error:
            peer.close()
            if isinstance(error, asyncio.TimeoutError):
                raise ConnectionError(f"no connection within {DIAL_S:g} s") from None
            raise
