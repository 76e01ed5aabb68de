"""Tickets: what a client shows a replica to be let in, signed by the gateway. Knows neither sockets nor a
clock.

A ticket is for one session on one replica and for one right, opens one connection and lives seconds; a client
that comes back asks the gateway for another. Gateway and replicas share a secret. Their clocks may be
`SKEW_S` apart: a ticket is good for so long before and after its time, and used ones are remembered as long
as that, so that no difference of clocks lets one in twice.

| right | held by | lets in |
|---|---|---|
| own | a session's owner | every socket; by HTTP `OPENS`, and all below `/v1/sessions/ID` |
| view | a viewer | the native socket, an offer of WebRTC, and all below `/v1/views/VIEW` |
| request | the gateway | the one request that it passes on |
| link | the gateway | its own line to the replica |

What an owner or a viewer then says of a session is held to the ticket's own (`ClientAccount.check_own`,
`check_view`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from typing import Literal

import msgspec

from millstream.core.errors import NotAllowed

LIFE_S = 30.0
SKEW_S = 60.0
SECRET_BYTES = 32
MAX_TEXT = 1024
MAX_USED = 100_000
"""Used tickets that are remembered; past that all are refused until the oldest have expired."""


LINK = "/v1/fleet/link"
"""Where the gateway's own line is."""
STREAM = "/v1/stream"
SESSIONS = "/v1/sessions/"
VIEWS = "/v1/views/"
OFFER = "/v1/webrtc/offer"
OPENS = re.compile(r"/v1/(sessions|videos|webrtc/offer|snapshots/[^/]+/sessions)|/api/v1/webrtc/offer")
"""Paths at which a POST opens a session."""
SOCKET = "WEBSOCKET"
"""In the place of a method."""
Right = Literal["own", "view", "request", "link"]


class Ticket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    right: Right
    session_id: str
    """The session that it opens or attaches to; a viewer's, its view link. Of the gateway's own requests
    mostly empty: they are for what they name."""
    request: str = ""
    """Digest of the one request that it is for, of the gateway's own (`request_digest`)."""
    client: str = ""
    """Address of the client that the gateway speaks for; empty: the one that brings the ticket."""
    replica_id: str
    """Id of one start of a replica: one that comes back has another, and takes no ticket of its former
    life."""
    key: str = ""
    """The name of the key that opened the session."""
    issued_at: float
    """Time by the gateway's clock, in seconds since 1970."""
    expires_at: float
    nonce: str


def issue(
    secret: bytes,
    *,
    right: Right,
    session_id: str,
    replica_id: str,
    key: str,
    now: float,
    request: str = "",
    client: str = "",
    life_s: float = LIFE_S,
) -> str:
    """A new ticket, as text that a URL and a header can carry."""
    assert session_id or right not in ("own", "view"), f"a ticket to {right} names what it is for"
    assert bool(request) == (right == "request"), f"a ticket to {right} for the request {request!r}"
    ticket = Ticket(
        right=right,
        session_id=session_id,
        request=request,
        client=client,
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
        self._secret = secret
        self.replica_id = replica_id
        self._used: OrderedDict[str, float] = OrderedDict()
        """Until when each is remembered, in the order of use."""

    def redeem(self, text: str, now: float, method: str, path: str) -> Ticket:
        """Return the ticket and mark it used. Raises `NotAllowed` if it does not allow this request here."""
        ticket = _read(self._secret, text)
        if ticket.replica_id != self.replica_id:
            raise NotAllowed("this ticket is for another replica; ask the gateway for one for this")
        if now > ticket.expires_at + SKEW_S:
            raise NotAllowed(
                f"this ticket expired {now - ticket.expires_at:.0f} s ago; ask the gateway for another"
            )
        if now < ticket.issued_at - SKEW_S:
            ahead = ticket.issued_at - now
            raise NotAllowed(
                f"this ticket is from {ahead:.0f} s ahead: set the clocks of gateway and replica alike"
            )
        self._forget(now)
        if ticket.nonce in self._used:
            raise NotAllowed("this ticket was used already; ask the gateway for another")
        _check_right(ticket, method, path)
        if len(self._used) >= MAX_USED:
            raise NotAllowed("too many tickets were used within a minute; ask the gateway for another later")
        self._used[ticket.nonce] = ticket.expires_at + SKEW_S
        return ticket

    def _forget(self, now: float) -> None:
        """Only what would be refused as expired."""
        while self._used and next(iter(self._used.values())) < now:
            self._used.popitem(last=False)


def request_digest(method: str, path: str) -> str:
    """One request's name in a ticket, however long its path."""
    return hashlib.sha256(f"{method} {path}".encode("utf-8", "surrogatepass")).hexdigest()


def _check_right(ticket: Ticket, method: str, path: str) -> None:
    """Everything is refused that no right names."""
    match ticket.right:
        case "link":
            lets = method == SOCKET and path == LINK
        case "request":
            lets = hmac.compare_digest(ticket.request, request_digest(method, path))
        case "view":
            lets = (method, path) in ((SOCKET, STREAM), ("POST", OFFER))
            lets = lets or (method in ("GET", "HEAD") and path.startswith(f"{VIEWS}{ticket.session_id}/"))
        case "own":
            here = f"{SESSIONS}{ticket.session_id}"
            lets = (method == SOCKET and path != LINK) or (
                method == "POST" and OPENS.fullmatch(path) is not None
            )
            lets = lets or (method != SOCKET and (path == here or path.startswith(f"{here}/")))
    if not lets:
        raise NotAllowed(
            "this ticket is not for this request; ask the gateway's address for it, which takes keys"
        )


def _read(secret: bytes, text: str) -> Ticket:
    """Nothing of it is looked at before its signature holds."""
    forged = NotAllowed("this is not a ticket of this fleet; ask its gateway for one")
    body, _, signature = text[: MAX_TEXT + 1].partition(".")
    if (
        len(text) > MAX_TEXT
        or not text.isascii()
        or not hmac.compare_digest(signature, _signature(secret, body))
    ):
        raise forged
    try:
        data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        return msgspec.json.decode(data, type=Ticket)
    except (binascii.Error, msgspec.MsgspecError):
        raise forged from None


def _signature(secret: bytes, body: str) -> str:
    digest = hmac.new(secret, body.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
