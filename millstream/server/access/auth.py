"""Admission of clients by the key, the page that sends a browser here, and the host name it uses. Checked
before anything is read.

The page itself and the health checks are open; all else needs the key where there is one, WebSockets
included. A browser sends the page it comes from (`Origin`) and the name by which it reached us (`Host`): a
foreign page is refused, and without a key so is a foreign name, or any page could have its name point here.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.core.errors import ConfigError, NotAllowed, Overloaded
from millstream.core.keys import NAMELESS, Key
from millstream.server.access.budgets import Clients
from millstream.server.access.keys import Keyring
from millstream.server.access.shares import Holdings, Quota

log = logging.getLogger(__name__)

ORIGIN = re.compile(r"https?://[^/?#]+")
NO_ORIGIN = "null"
"""Origin that a browser sends for a page that is a file, or for one in a sandbox: its site is unknown."""
KEY_SUBPROTOCOL = "millstream.key."
KEY_QUERY = "api_key"
"""Query field of a socket's or a film's address, for clients that can be given nothing but an address."""
VIEWS = "/v1/views/"
"""Where films are that players fetch."""
TICKET_QUERY = "ticket"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HOLDER = "millstream.key"
"""In a scope: the `Pass` that was brought."""
CLOSE_POLICY = 1008
TOO_MANY = 429
FLOOD_COST = 25.0
"""In requests, of a connection that had to be ended for its frames: or a new one each time would be a new
budget."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LOG_AGAIN_S = 60.0
"""From one log line on a refused page to the next on the same."""
MAX_REFUSED_PAGES = 32
"""Origins that are logged within that time: a client may make up as many as it likes."""
MAX_LOGGED_ORIGIN = 100
"""Letters of one."""


class Pass(NamedTuple):
    """Rights that a client has from its key or ticket."""

    key: Key = NAMELESS
    session_id: str = ""
    """Open or attach to this one, or watch by this view link; empty: any."""
    only_views: bool = False
    """Watch, and neither open nor own."""
    client: str = ""
    """Address of the client, where another server passes its request on; empty: the connection's other
    end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    keyring: Keyring | None = None
    """None: anybody may come."""
    origins: frozenset[str] = frozenset()
    """Pages of other servers that may use this one, such as https://example.org."""
    names: frozenset[str] | None = LOCAL_NAMES
    """By which this server may be reached; None: any."""
    max_connections: int = 256
    """WebSockets of one client at once; all clients together may have an eighth more."""
    redeem: Callable[[str, Scope], Pass] | None = None
    """Check of tickets, on a server behind a gateway: returns what a ticket allows for a request.
    Raises `NotAllowed`. Keys and origins are not checked then."""


def access_for(
    host: str,
    *,
    api_key: str | None,
    insecure: bool,
    origins: Collection[str],
    keyring: Keyring | None = None,
) -> Access:
    """Refuses to be open to others without a key, unless that is what was said. On the ring are those with
    names."""
    if api_key is not None:
        if keyring is not None:
            raise ConfigError(
                "--api-key is one for everybody, and there are keys with names: give it one too, or leave it out"
            )
        try:
            keyring = Keyring.of_one(api_key)
        except ConfigError as error:
            raise ConfigError(f"--api-key, or MILLSTREAM_API_KEY: {error}") from None
    for origin in origins:
        if origin != NO_ORIGIN and (not ORIGIN.fullmatch(origin) or not _netloc(origin)):
            raise ConfigError(
                "--allow-origin takes a page's scheme and host, such as https://example.org, or null for "
                f"files, got {origin!r}"
            )
    local = is_local(host)
    if not (local or keyring or insecure):
        raise ConfigError(
            f"others can reach --host {host}: give --api-key KEY, keys in --config, or --insecure for anybody"
        )
    pages = {urlsplit(origin).hostname or "" for origin in origins if origin != NO_ORIGIN}
    names = LOCAL_NAMES | {host} | pages if local and not keyring else None
    return Access(keyring=keyring, origins=frozenset(origins), names=names)


def check_proxies(proxies: Collection[str]) -> None:
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError:
            raise ConfigError(
                f"--trusted-proxy takes an address, such as 127.0.0.1 or 10.0.0.0/8, got {proxy!r}"
            ) from None


def is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RefusedPages:
    """Log lines on pages that were turned away: a page's person sees a connection that fails and no reason,
    so whoever runs the server must be able to find one. At most one line a minute for each origin, and for
    `MAX_REFUSED_PAGES` of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}

    def note(self, origin: str) -> None:
        origin = origin[:MAX_LOGGED_ORIGIN]
        now = self._clock()
        self._logged = {each: at for each, at in self._logged.items() if now - at < LOG_AGAIN_S}
        if origin in self._logged or len(self._logged) >= MAX_REFUSED_PAGES:
            return
        self._logged[origin] = now
        log.warning("refused a page from %r: start with --allow-origin and that origin to let it in", origin)


class Gate:
    """Everything passes here first."""

    def __init__(
        self, app: ASGIApp, *, access: Access, open_paths: Collection[str], clients: Clients
    ) -> None:
        self._app = app
        self._access = access
        self._open_paths = frozenset(open_paths)
        self._clients = clients
        self._sockets = Holdings(Quota(access.max_connections), "connections")
        self._refused_pages = RefusedPages()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        client = self._clients.at(scope.get("client"))  # a ticket may have said who it is
        if refusal is not None:
            status, message = refusal
            ends = (
                {"Connection": "close"} if status == TOO_MANY else None
            )  # and whatever else was sent ahead is not read
            answer = JSONResponse({"error": {"code": "refused", "message": message}}, status, ends)
            await answer(
                scope, receive, send
            )  # a WebSocket is denied in the same words, before it is accepted
            return
        if scope["type"] == "http":
            await self._app(scope, receive, send)
            return

        async def receive_or_charge() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect" and message.get("code") == CLOSE_POLICY:
                client.requests.charge(FLOOD_COST)
            return message

        with self._sockets.one_by(client.name):
            await self._app(scope, receive_or_charge, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """A status and one line; None where the client may pass."""
        headers = Headers(scope=scope)
        access = self._access
        if access.names is not None and _name(headers.get("host", "")) not in access.names:
            return 403, "this server is reached by another name; use the address it printed"
        if scope["path"] in self._open_paths and scope["type"] == "http":
            return None
        if access.redeem is not None:
            return _without_ticket(scope, headers, access.redeem) or self._too_much(scope)
        if not self._origin_allowed(scope, headers):
            self._refused_pages.note(headers["origin"])
            return 403, "this page may not use this server; its owner can say --allow-origin"
        return self._without_key(scope, headers) or self._too_much(scope)

    def _without_key(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Notes in the scope whose key it was."""
        if self._access.keyring is None:
            return None
        client = self._clients.at(scope.get("client"))
        keys = _keys(scope, headers)
        if client.wrong_keys.left < 1:  # even a right one: or guessing on would be worth it
            return TOO_MANY, "too many wrong keys came from this address; wait a minute"
        key = self._access.keyring.find(keys)
        if key is not None:
            scope[HOLDER] = Pass(key)
            return None
        client.wrong_keys.try_spend(min(1, len(keys)))
        if keys:
            return (
                401,
                "the key is wrong: this server has no such key; look for a typing error, or ask who runs it "
                "for yours",
            )
        return (
            401,
            "a key is needed: Authorization: Bearer KEY; for sockets also the subprotocol millstream.key.KEY "
            "or ?api_key=KEY",
        )

    def _too_much(self, scope: Scope) -> tuple[int, str] | None:
        client = self._clients.at(scope.get("client"))
        if not client.requests.try_spend():
            return TOO_MANY, "too many requests; wait a moment"
        if scope["type"] == "websocket":
            try:
                self._sockets.check(client.name)
            except Overloaded as error:
                return 503, str(error)
        return None

    def _origin_allowed(self, scope: Scope, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None or (scope["type"] == "http" and scope["method"] in SAFE_METHODS):
            return True
        secure = scope["scheme"] in ("https", "wss")  # then a page that came unencrypted is somebody else's
        host = headers.get("host", "")
        own = host != "" and _netloc(origin) == host and (origin.startswith("https:") or not secure)
        return own or origin in self._access.origins


def pass_of(scope: Scope) -> Pass:
    """Whose request it is; everybody's are one's where there are no keys."""
    brought: Pass = scope.get(HOLDER, Pass())
    return brought


def _without_ticket(
    scope: Scope, headers: Headers, redeem: Callable[[str, Scope], Pass]
) -> tuple[int, str] | None:
    """Notes in the scope what the ticket is worth, and whose request it is."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    ticket = (
        given
        if scheme.lower() == "bearer"
        else QueryParams(scope.get("query_string", b"")).get(TICKET_QUERY, "")
    )
    try:
        brought = scope[HOLDER] = redeem(ticket, scope)
    except NotAllowed as error:
        return 403, str(error)
    if brought.client:
        scope["client"] = (brought.client, 0)
    return None


def _keys(scope: Scope, headers: Headers) -> list[str]:
    """Return the keys that a client sends, five at most."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    offered = [
        name.removeprefix(KEY_SUBPROTOCOL)
        for name in scope.get("subprotocols", ())
        if name.startswith(KEY_SUBPROTOCOL)
    ]
    played = scope["type"] == "websocket" or scope["path"].startswith(VIEWS)
    if played:  # of a page's address the key would end up in histories, and in what it links to
        offered += QueryParams(scope.get("query_string", b"")).getlist(KEY_QUERY)
    return ([given.strip()] if scheme.lower() == "bearer" else []) + offered[:4]


def _netloc(origin: str) -> str | None:
    """Return host and port of a page; None where it cannot be parsed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _name(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
