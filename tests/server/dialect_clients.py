"""One side of a dialect's conversation, without sockets and models: what is said goes into it, what is heard
is read as its clients would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from millstream.core.client_messages import Ask
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.krea import Krea
from millstream.server.dialects.scope_parameters import ScopeChannel, ScopeParameters
from millstream.server.dialects.sglang import SGLang
from millstream.server.dialects.vllm_omni import VLLMOmni
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import Outbox
from millstream.server.transport.websocket_loop import MessageHandler, messages
from tests.server.fakes import FakeService, fake_hub

GENEROUS = ClientLimits(messages_per_s=1e9, controls_per_s=1e9, frames_per_s=1e9)
MakeHandler = Callable[[SessionHub, Outbox, ClientLimits], MessageHandler]
DIALECTS: dict[str, MakeHandler] = {
    "sglang": SGLang,
    "vllm_omni": VLLMOmni,
    "krea": Krea,
    "scope": ScopeChannel,
}
OPENINGS: dict[str, dict[str, Any]] = {
    "sglang": {"type": "init", "prompt": "sea"},
    "vllm_omni": {"type": "session.start", "prompt": "sea"},
    "krea": {"prompt": "sea"},
}
PACKS = ("sglang", "krea")
"""Dialects that speak MessagePack."""


class Client:
    """One side of a dialect's conversation, without a socket."""

    def __init__(self, dialect: str, hub: SessionHub, limits: ClientLimits = GENEROUS) -> None:
        self.dialect = dialect
        self.outbox = Outbox()
        self.handler = DIALECTS[dialect](hub, self.outbox, limits)

    async def open(self) -> list[Any]:
        if isinstance(self.handler, ScopeChannel):
            await self.handler.start(Ask(prompt="sea"), ScopeParameters(), ())
            return await self.heard()
        return await self.say(OPENINGS[self.dialect])

    async def say(self, message: Any) -> list[Any]:
        """Everything that is heard once a message was taken; pictures as bytes."""
        if not isinstance(message, (str, bytes)):
            message = msgspec.msgpack.encode(message) if self.dialect in PACKS else json.dumps(message)
        await self.handler.on_message(message)
        return await self.heard()

    async def heard(self) -> list[Any]:
        for _ in range(5):  # a fake's notices take a turn or two of the loop
            await asyncio.sleep(0)
        found: list[Any] = []
        while len(self.outbox):
            found += [self._read(data) for data in messages(self.handler.encode(await self.outbox.pop()))]
        return found

    def _read(self, data: str | bytes) -> Any:
        if isinstance(data, str):
            return json.loads(data)
        return msgspec.msgpack.decode(data) if self.dialect == "sglang" else data


def with_hub(
    play: Callable[[SessionHub, FakeService], Awaitable[None]], *, patience_s: float = 60, **options: Any
) -> None:
    async def main() -> None:
        service = FakeService(**options)
        hub = fake_hub(service)
        try:
            await asyncio.wait_for(play(hub, service), patience_s)
        finally:
            await hub.close()
        assert hub.live_sessions == {}

    asyncio.run(main())


def is_error(said: Any) -> bool:
    return isinstance(said, dict) and (said.get("type") == "error" or "error" in said)
