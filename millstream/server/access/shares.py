"""Quotas of what one client may hold at once, by its address. Knows no protocol and no sessions.

A client that is alone may take all that there is for one. Beside that there is a reserve for others, so that
no client alone fills a server. An IPv6 client has a whole /64 of addresses and counts as one. Many addresses
together can still fill a server.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millstream.core.errors import Overloaded

IPV6_PREFIX = 64
MAX_NAME = 64
"""Letters of an address that is none; a proxy may send anything."""


@dataclass(frozen=True, slots=True)
class Quota:
    """`most` for one client; for all together an eighth more, or one."""

    most: int

    @property
    def total(self) -> int:
        return self.most + max(1, self.most // 8)

    def check(self, what: str, *, own: int, all: int) -> None:
        """Raise `Overloaded` where a client that holds `own` of `all` may not have one more."""
        assert 0 <= own <= all, f"{own} of {all} {what}"
        if own >= self.most:
            raise Overloaded(f"{own} {what} of yours are open already; close one first")
        if all >= self.total:
            raise Overloaded(f"{all} {what} are open already; try again later")


class Holdings:
    """Count of how many of something each client holds now."""

    def __init__(self, quota: Quota, what: str) -> None:
        self._quota = quota
        self._what = what
        self._counts: Counter[str] = Counter()
        self._total = 0
        """Sum of the counts, kept because a sum for each newcomer would be a walk over all clients."""

    def check(self, client: str) -> None:
        self._quota.check(self._what, own=self._counts[client], all=self._total)

    @contextmanager
    def one_by(self, client: str) -> Iterator[None]:
        """Hold one more for the block. Raises `Overloaded` where it would be one too many."""
        self.check(client)
        self._counts[client] += 1
        self._total += 1
        try:
            yield
        finally:
            assert self._counts[client] > 0, f"a client gives back {self._what} that it does not hold"
            self._counts[client] -= 1
            self._total -= 1
            if not self._counts[client]:
                del self._counts[client]


def client_at(peer: tuple[str, int] | None) -> str:
    """Return the name under which a connection's other end is counted."""
    host = "" if peer is None else peer[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host[:MAX_NAME]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))
