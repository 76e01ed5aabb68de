"""How fast one client may ask, whatever it comes by: one account for each address. Spent where things are asked for."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass

from millstream.core.errors import NotAllowed
from millstream.server.access.keys import NAMELESS, Key
from millstream.server.access.limits import TokenBucket
from millstream.server.access.shares import client_at


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRates:
    """So many a second on average, and so many at once."""

    requests: tuple[float, float] = (50.0, 200.0)
    saves: tuple[float, float] = (1.0, 10.0)
    """Each takes the engine's time between two chunks, and a file."""
    previews: tuple[float, float] = (0.5, 8.0)
    """Each takes time that nobody else has asked for, and power."""
    uploads: tuple[float, float] = (1.0, 10.0)
    offers: tuple[float, float] = (2.0, 16.0)
    """Of WebRTC: parsing one and gathering sockets for it takes the event loop's time."""
    wrong_keys: tuple[float, float] = (0.2, 20.0)
    """After that a client waits, whatever key it brings."""


class ClientAccount:
    """What one may still ask for."""

    def __init__(self, name: str = "", rates: ClientRates | None = None) -> None:
        rates = rates or ClientRates()
        self.name = name
        self.key = NAMELESS
        """What it brought with what it asks now."""
        self.session_id = ""
        """The one session that this lets it open or attach to; empty: any."""
        self.requests = TokenBucket(*rates.requests)
        self.saves = TokenBucket(*rates.saves)
        self.previews = TokenBucket(*rates.previews)
        self.uploads = TokenBucket(*rates.uploads)
        self.offers = TokenBucket(*rates.offers)
        self.wrong_keys = TokenBucket(*rates.wrong_keys)

    def bringing(self, key: Key, session_id: str) -> ClientAccount:
        """The same account, for one request or socket."""
        client = copy.copy(self)
        client.key, client.session_id = key, session_id
        return client

    def check_session(self, name: str) -> None:
        """By its id, or by its view link."""
        if self.session_id not in ("", name):
            raise NotAllowed("this ticket is for another session; ask the gateway for one for this")


class Clients:
    """Everybody who asks. The one that asked longest ago is forgotten first."""

    def __init__(self, rates: ClientRates | None = None, max_clients: int = 1024) -> None:
        self._rates, self._max_clients = rates or ClientRates(), max_clients
        self._clients: OrderedDict[str, ClientAccount] = OrderedDict()

    def at(self, peer: tuple[str, int] | None) -> ClientAccount:
        name = client_at(peer)
        client = self._clients.pop(name, None) or ClientAccount(name, self._rates)
        self._clients[name] = client
        if len(self._clients) > self._max_clients:
            self._clients.popitem(last=False)
        return client

    def __len__(self) -> int:
        return len(self._clients)
