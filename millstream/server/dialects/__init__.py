"""Protocols that people's clients speak already, each put into the native one's words. See docs/protocol.md, "Dialects"."""

from __future__ import annotations

from starlette.routing import BaseRoute

from millstream.server.dialects import krea, scope, sglang, vllm_omni
from millstream.server.protocol.endpoints import Endpoint


def sockets() -> list[BaseRoute]:
    return [*sglang.routes(), *vllm_omni.routes(), *krea.routes()]


def endpoints() -> list[Endpoint]:
    return scope.endpoints()
