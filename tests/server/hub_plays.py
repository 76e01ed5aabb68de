"""A hub on a service that makes pictures at once: play something on it, and take what its viewers are
given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from millstream.core.controls import WeightedPrompt
from millstream.core.server_messages import Stats
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from tests.server.fakes import FakeService, fake_hub

SEA = (WeightedPrompt("sea"),)


def with_hub(play: Callable[[SessionHub, FakeService], Awaitable[None]], **limits: float) -> None:
    async def main() -> None:
        service = FakeService()
        hub = fake_hub(service, **limits)
        hub.start()
        try:
            await asyncio.wait_for(play(hub, service), 30)
        finally:
            await hub.close()
        assert hub.live_sessions == {}
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    before = set(threading.enumerate())
    asyncio.run(main())
    assert {thread for thread in set(threading.enumerate()) - before if "millstream" in thread.name} == set()


async def pictures(outbox: Outbox, count: int) -> list[EncodedChunk]:
    return [
        item
        for item in await items(outbox, lambda got: sum(isinstance(i, EncodedChunk) for i in got) >= count)
        if isinstance(item, EncodedChunk)
    ]


async def items(outbox: Outbox, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """What comes out, but for the figures that come every second."""
    found: list[Any] = []
    while not enough(found):
        item = await outbox.pop()
        if not isinstance(item, Stats):
            found.append(item)
        if item is None:
            break
    return found
