"""What one client may hold and how fast it may ask, by the address it comes from. Knows no protocol and no sessions.

Whoever is alone may take all that there is for one. Beside that there is a reserve for others, so that no client alone fills a
server. An IPv6 client has a whole /64 of addresses and counts as one. Many addresses together can still fill a server.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from millstream.core.errors import Overloaded
from millstream.server.limits import TokenBucket

IPV6_PREFIX = 64
MAX_NAME = 64
"""Letters of an address that is none; a proxy may send anything."""


@dataclass(frozen=True, slots=True)
class Places:
    """`most` for one client, and an eighth more for all together."""

    most: int

    @property
    def total(self) -> int:
        return self.most + self.most // 8

    def check(self, what: str, *, own: int, all: int) -> None:
        """Whether somebody who holds `own` of `all` may have one more."""
        if own >= self.most:
            raise Overloaded(f"{own} {what} of yours are open already; close one first")
        if all >= self.total:
            raise Overloaded(f"{all} {what} are open already; try again later")


class ClientBuckets:
    """A bucket for each client. The one that asked longest ago is forgotten first."""

    def __init__(self, rate: float, burst: float, max_clients: int = 1024) -> None:
        self.rate = rate
        self._make: Callable[[], TokenBucket] = lambda: TokenBucket(rate, burst)
        self._max_clients = max_clients
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, client: str) -> bool:
        """Whether one more may pass now."""
        return self.of(client).take()

    def of(self, client: str) -> TokenBucket:
        bucket = self._buckets.pop(client, None) or self._make()
        self._buckets[client] = bucket
        if len(self._buckets) > self._max_clients:
            self._buckets.popitem(last=False)
        return bucket


def client_at(peer: tuple[str, int] | None) -> str:
    """Who is counted for a connection's other end."""
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
