"""Tickets: what a client shows a replica to be let in, signed by the gateway. Knows neither sockets nor a clock.

A ticket is for one session on one replica, opens one connection and lives seconds; whoever comes back asks the gateway for
another. Gateway and replicas share a secret. Their clocks may be `SKEW_S` apart: a ticket is good for so long before and after
its time, and used ones are remembered as long as that, so that no difference of clocks lets one in twice.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict

import msgspec

from millstream.core.errors import NotAllowed

LIFE_S = 30.0
SKEW_S = 60.0
SECRET_BYTES = 32
MAX_TEXT = 1024
MAX_USED = 100_000
"""Used tickets that are remembered; past that everybody is refused until the oldest have expired."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session_id: str
    replica_id: str
    """Of one start of a replica: one that comes back has another, and takes no ticket of its former life."""
    key: str = ""
    """The name of the key that opened the session."""
    issued_at: float
    """Of the gateway's clock, seconds since 1970."""
    expires_at: float
    nonce: str


def issue(secret: bytes, *, session_id: str, replica_id: str, key: str, now: float, life_s: float = LIFE_S) -> str:
    """A new ticket, as text that a URL and a header can carry."""
    ticket = Ticket(
        session_id=session_id,
        replica_id=replica_id,
        key=key,
        issued_at=now,
        expires_at=now + life_s,
        nonce=secrets.token_urlsafe(12),
    )
    body = base64.urlsafe_b64encode(msgspec.json.encode(ticket)).decode().rstrip("=")
    text = f"{body}.{_signature(secret, body)}"
    assert len(text) <= MAX_TEXT, f"a ticket of {len(text)} characters"
    return text


class TicketGate:
    """A replica's side: lets each ticket in once."""

    def __init__(self, secret: bytes, replica_id: str) -> None:
        assert len(secret) >= SECRET_BYTES, f"a secret has {SECRET_BYTES} bytes or more, got {len(secret)}"
        self._secret, self.replica_id = secret, replica_id
        self._used: OrderedDict[str, float] = OrderedDict()
        """Until when each is remembered, in the order of use."""

    def redeem(self, text: str, now: float) -> Ticket:
        """What it is for; `NotAllowed` if it opens nothing here."""
        ticket = _read(self._secret, text)
        if ticket.replica_id != self.replica_id:
            raise NotAllowed("this ticket is for another replica; ask the gateway for one for this")
        if now > ticket.expires_at + SKEW_S:
            raise NotAllowed(f"this ticket expired {now - ticket.expires_at:.0f} s ago; ask the gateway for another")
        if now < ticket.issued_at - SKEW_S:
            ahead = ticket.issued_at - now
            raise NotAllowed(f"this ticket is from {ahead:.0f} s ahead: set the clocks of gateway and replica alike")
        self._forget(now)
        if ticket.nonce in self._used:
            raise NotAllowed("this ticket was used already; ask the gateway for another")
        if len(self._used) >= MAX_USED:
            raise NotAllowed("too many tickets were used within a minute; ask the gateway for another later")
        self._used[ticket.nonce] = ticket.expires_at + SKEW_S
        return ticket

    def _forget(self, now: float) -> None:
        """Only what would be refused as expired."""
        while self._used and next(iter(self._used.values())) < now:
            self._used.popitem(last=False)


def _read(secret: bytes, text: str) -> Ticket:
    """Nothing of it is looked at before its signature holds."""
    forged = NotAllowed("this is not a ticket of this fleet; ask its gateway for one")
    body, _, signature = text[: MAX_TEXT + 1].partition(".")
    if len(text) > MAX_TEXT or not text.isascii() or not hmac.compare_digest(signature, _signature(secret, body)):
        raise forged
    try:
        data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        return msgspec.json.decode(data, type=Ticket)
    except (binascii.Error, msgspec.MsgspecError):
        raise forged from None


def _signature(secret: bytes, body: str) -> str:
    digest = hmac.new(secret, body.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
