"""Budget of requests for one client, over all its connections: one account for each address. Spent where
things are asked for."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import NotAllowed
from millstream.core.keys import NAMELESS, Key
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
    images: tuple[float, float] = (1.0, 8.0)
    """Pictures to begin from: decoding and scaling one may take a second of a core."""
    offers: tuple[float, float] = (2.0, 16.0)
    """WebRTC offers: parsing one and gathering sockets for it takes the event loop's time."""
    reading: tuple[float, float] = (0.1, 1.0)
    """Seconds of the processor for reading what it sends: the event loop reads nothing else meanwhile."""
    wrong_keys: tuple[float, float] = (0.2, 20.0)
    """After that a client waits, whatever key it brings."""


class ClientAccount:
    """Budgets of one client: what it may still ask for."""

    def __init__(self, name: str = "", rates: ClientRates | None = None) -> None:
        rates = rates or ClientRates()
        self.name = name
        self.key = NAMELESS
        """Key that came with the current request or socket."""
        self.session_id = ""
        """Only session that it may open or attach to now, or only view link; empty: any."""
        self.only_views = False
        self.requests = TokenBucket(*rates.requests)
        self.saves = TokenBucket(*rates.saves)
        self.previews = TokenBucket(*rates.previews)
        self.uploads = TokenBucket(*rates.uploads)
        self.images = TokenBucket(*rates.images)
        self.offers = TokenBucket(*rates.offers)
        self.reading = TokenBucket(*rates.reading)
        self.wrong_keys = TokenBucket(*rates.wrong_keys)

    def bringing(self, key: Key, session_id: str, only_views: bool = False) -> ClientAccount:
        """Return the account for one request or socket: with its key and rights, and the same budgets."""
        client = copy.copy(self)
        client.key = key
        client.session_id = session_id
        client.only_views = only_views
        return client

    def check_reading(self) -> None:
        """Raise `ProtocolError` if reading the client's earlier messages has used up its CPU time."""
        if self.reading.left <= 0:
            late = (
                "what this address sent took too long to read; wait a moment, and send less or simpler "
                "messages"
            )
            raise ProtocolError("too_fast", late)

    def session_to_open(self) -> str:
        """Return the id that a session opened now must have; empty: any."""
        self._check_owning()
        return self.session_id

    def check_own(self, session_id: str) -> None:
        self._check_owning()
        self._check_name(session_id)

    def check_view(self, view_id: str) -> None:
        self._check_name(view_id)

    def _check_owning(self) -> None:
        if self.only_views:
            raise NotAllowed(
                "this ticket is for a view link, which only shows; ask the gateway for one for a session"
            )

    def _check_name(self, name: str) -> None:
        if self.session_id not in ("", name):
            raise NotAllowed("this ticket is for another session; ask the gateway for one for this")


class Clients:
    """Everybody who asks. The one that asked longest ago is forgotten first."""

    def __init__(self, rates: ClientRates | None = None, max_clients: int = 1024) -> None:
        self._rates = rates or ClientRates()
        self._max_clients = max_clients
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
