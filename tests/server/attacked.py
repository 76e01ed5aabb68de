"""A real `millstream serve` to be attacked, and the few things that attacks need of it. Synchronous, as tests are."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from benchmarks.abuses.http import Answer, Caller, Request
from benchmarks.abuses.scene import Scene
from benchmarks.abuses.server import MODEL, SHORT, Load, Log, read_load
from benchmarks.abuses.target import Target
from millstream.load.host import Host, is_ready, serve

T = TypeVar("T")
PATIENCE_S = 60.0
STRANGER = "127.0.0.1"
ATTACKERS = (f"127.6.{number}.6" for number in count())
"""Each attack comes from an address of its own, or what is left of one would count against the next."""


@dataclass(slots=True)
class Attacked:
    host: Host

    @property
    def target(self) -> Target:
        return Target.at(self.host.url)

    def scene(self, source: str = "") -> Scene:
        return Scene(self.target, random.Random(0), time.monotonic() + PATIENCE_S, source=source or next(ATTACKERS))

    def run(self, act: Callable[[Scene], Awaitable[T]], source: str = "") -> T:
        """Something done from an address, with an end to patience."""

        async def bounded() -> T:
            try:
                return await asyncio.wait_for(act(self.scene(source)), PATIENCE_S)
            finally:
                await asyncio.sleep(0)  # for what was hung up to be gone

        return asyncio.run(bounded())

    def ask(self, request: Request, source: str = "") -> Answer:
        async def once(scene: Scene) -> Answer | None:
            caller = Caller(scene.target, scene.source)
            try:
                return await caller.ask(request)
            finally:
                caller.hang_up()

        answer = self.run(once, source)
        assert answer is not None, f"{request} was not answered"
        return answer

    def load(self) -> Load:
        load = read_load(self.host)
        assert load is not None, "the server is gone"
        return load

    def is_ready(self) -> bool:
        return asyncio.run(is_ready(self.host.url))


@contextmanager
def attacked(*options: str) -> Iterator[Attacked]:
    """For as long as the block lasts; what it wrote to its log meanwhile may hold no traceback."""
    ready, done = threading.Event(), threading.Event()
    hosts: list[Host] = []
    errors: list[BaseException] = []

    async def hold() -> None:
        try:
            async with serve([*MODEL, *SHORT, *options]) as host:
                hosts.append(host)
                ready.set()
                await asyncio.to_thread(done.wait)
        except BaseException as error:
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(hold()), name="attacked")
    thread.start()
    try:
        ready.wait()
        assert hosts, f"the server did not start: {errors}"
        yield Attacked(hosts[0])
    finally:
        done.set()
        thread.join()


@contextmanager
def without_tracebacks(server: Attacked) -> Iterator[None]:
    """Nothing that happens inside is news to the server's log."""
    log = Log(server.host)
    yield
    time.sleep(0.2)  # what a connection's end does comes after its last word
    assert log.tracebacks() == {}


def said(**fields: Any) -> str:
    return json.dumps(fields)
