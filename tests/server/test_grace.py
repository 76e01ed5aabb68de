"""However much hangs, a server that is told to stop waits no longer than its grace, and everything that waits
has its share."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from millstream.server.sessions.grace import Grace
from tests.server.fakes import FakeService, fake_hub

PATIENCE_S = 20.0


def test_a_grace_begins_when_it_is_asked_for_and_halves_never_use_it_up() -> None:
    now_s = 100.0
    grace = Grace(8.0, clock=lambda: now_s)
    now_s = 200.0
    assert (grace.left_s(), grace.half_s()) == (8.0, 4.0)
    now_s += 4.0
    assert (grace.left_s(), grace.half_s()) == (4.0, 2.0)
    now_s += 60.0
    assert (grace.left_s(), grace.half_s()) == (0.0, 0.0)


@dataclass
class Clock:
    now_s: float = 0.0

    def read(self) -> float:
        return self.now_s


class StuckService(FakeService):
    """Waits for as long as it may."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def close(self, timeout_s: float = 0.0) -> None:
        self.patience_s = timeout_s
        self.clock.now_s += timeout_s


class StuckKeeper:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    async def keep_all(self, timeout_s: float) -> None:
        self.patience_s = timeout_s
        self.clock.now_s += timeout_s

    def close(self, *, hurry: bool) -> None:
        self.is_hurried = hurry


def test_a_keeper_a_service_and_tasks_that_hang_share_one_grace() -> None:
    async def main() -> None:
        clock = Clock()
        service = StuckService(clock)
        keeper = StuckKeeper(clock)
        hub = fake_hub(service)
        hub.start()
        hub.grace = Grace(0.8, clock.read)  # type: ignore[assignment]
        hub.keeper = keeper
        hangs = hub.spawn(asyncio.sleep(1000))
        left_s = await asyncio.wait_for(hub.farewell(), PATIENCE_S)
        assert [keeper.patience_s, service.patience_s, left_s] == pytest.approx([0.4, 0.2, 0.1])
        assert not hangs.done()
        clock.now_s += 0.2
        await hub.close()
        assert keeper.is_hurried
        hangs.cancel()

    asyncio.run(main())


def test_a_service_whose_turn_on_a_thread_never_comes_is_not_waited_for() -> None:
    async def main() -> None:
        go_on = threading.Event()
        threads = ThreadPoolExecutor(1)
        threads.submit(go_on.wait)
        asyncio.get_running_loop().set_default_executor(threads)
        hub = fake_hub(grace_s=0.2)
        hub.start()
        try:
            await asyncio.wait_for(hub.farewell(), PATIENCE_S)
        finally:
            go_on.set()
        await hub.close()

    asyncio.run(main())
