"""Protocols that people's clients speak already, each put into the native one's words. See
docs/clients.md."""

from __future__ import annotations

from starlette.routing import BaseRoute

from millstream.server.dialects import krea, krea_films, scope, sglang, vllm_omni
from millstream.server.protocol.endpoints import Endpoint


def routes() -> tuple[list[BaseRoute], list[Endpoint]]:
    """Sockets, and what is answered over HTTP."""
    films = krea_films.Films()
    sockets = [*sglang.routes(), *vllm_omni.routes(), *krea.routes(films)]
    return sockets, [*scope.endpoints(), *krea_films.endpoints(films)]
