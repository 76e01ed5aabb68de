"""Headers of every answer for browsers: what the page may load, and that no page may put it into a frame.

The page has no inline scripts and no inline styles; it reads pictures from memory (`blob:`) and talks to its
own server.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' blob:",
    "media-src": "'self' blob:",
    "connect-src": "'self'",
    "form-action": "'none'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class SafeHeaders:
    """Adds them to whatever is answered."""

    def __init__(self, app: ASGIApp, *, connects: str = POLICY["connect-src"]) -> None:
        """`connects` is where the page may connect to."""
        self._app = app
        policy = POLICY | {"connect-src": connects}
        self._headers = HEADERS | {
            "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items())
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_safely)
