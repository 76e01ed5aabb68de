"""Who may come in: the key, the page that sends a browser here, and the name it was reached by. Before anything is read.

The page itself and the health checks are open; all else needs the key where there is one, WebSockets included. A browser says
which page sent it (`Origin`) and by which name it reached us (`Host`): a foreign page is turned away, and without a key so is a
foreign name, or any page could have its name point here.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.core.errors import ConfigError
from millstream.server.limits import ClientBuckets

KEY = re.compile(r"[A-Za-z0-9._~-]{8,256}")
"""What both a header and a WebSocket subprotocol can carry."""
KEY_SUBPROTOCOL = "millstream.key."
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    api_key: str | None = None
    origins: frozenset[str] = frozenset()
    """Pages of other servers that may use this one, such as https://example.org."""
    names: frozenset[str] | None = LOCAL_NAMES
    """By which this server may be reached; None: any."""
    max_connections: int = 256
    """WebSockets at once; one more is turned away."""


def access_for(host: str, *, api_key: str | None, insecure: bool, origins: Collection[str]) -> Access:
    """Refuses to be open to others without a key, unless that is what was said."""
    if api_key is not None and not KEY.fullmatch(api_key):
        raise ConfigError("the API key must have 8 to 256 letters, digits or any of . _ ~ -")
    for origin in origins:
        if urlsplit(origin).scheme not in ("http", "https") or urlsplit(origin).path:
            raise ConfigError(f"--allow-origin takes a page's scheme and host, such as https://example.org, got {origin!r}")
    local = is_local(host)
    if not (local or api_key or insecure):
        raise ConfigError(f"others can reach {host}: give --api-key KEY, or --insecure to let anybody in")
    names = LOCAL_NAMES | {host} | {urlsplit(origin).hostname or "" for origin in origins} if local and not api_key else None
    return Access(api_key=api_key, origins=frozenset(origins), names=names)


def is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """Everything passes here first."""

    def __init__(self, app: ASGIApp, *, access: Access, open_paths: Collection[str], buckets: ClientBuckets) -> None:
        self._app = app
        self._access = access
        self._open_paths = frozenset(open_paths)
        self._buckets = buckets
        self._connections = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            status, message = refusal
            answer = JSONResponse({"error": {"code": "refused", "message": message}}, status)
            await answer(scope, receive, send)  # a WebSocket is denied in the same words, before it is accepted
            return
        is_socket = scope["type"] == "websocket"
        self._connections += is_socket
        try:
            await self._app(scope, receive, send)
        finally:
            self._connections -= is_socket

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """A status and one line; None where the client may pass."""
        headers, access = Headers(scope=scope), self._access
        if access.names is not None and _name(headers.get("host", "")) not in access.names:
            return 403, "this server is reached by another name; use the address it printed"
        if scope["path"] in self._open_paths and scope["type"] == "http":
            return None
        if not self._origin_allowed(scope, headers):
            return 403, "this page may not use this server; its owner can say --allow-origin"
        if access.api_key is not None and not _knows_key(scope, headers, access.api_key):
            return 401, "a key is needed: Authorization: Bearer KEY, or the subprotocol millstream.key.KEY"
        if not self._buckets.take((scope.get("client") or ("",))[0]):
            return 429, "too many requests; wait a moment"
        if scope["type"] == "websocket" and self._connections >= access.max_connections:
            return 503, f"{access.max_connections} connections are open already; try again later"
        return None

    def _origin_allowed(self, scope: Scope, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None or (scope["type"] == "http" and scope["method"] in SAFE_METHODS):
            return True
        return origin in self._access.origins or urlsplit(origin).netloc == headers.get("host", "")


def _knows_key(scope: Scope, headers: Headers, key: str) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    offered = [name.removeprefix(KEY_SUBPROTOCOL) for name in scope.get("subprotocols", ()) if name.startswith(KEY_SUBPROTOCOL)]
    candidates = ([given.strip()] if scheme.lower() == "bearer" else []) + offered[:4]
    return any(hmac.compare_digest(each.encode(), key.encode()) for each in candidates)


def _name(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
