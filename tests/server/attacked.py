"""A server to be attacked, and the few things that attacks need of it. Synchronous, as tests are."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from millstream.load.host import Host, is_ready, serve
from millstream.server.app import AppConfig
from tests.server.serving import serving
from tests.soak.abuses.http import Answer, Request
from tests.soak.abuses.scene import Scene
from tests.soak.abuses.server import MODEL, SHORT, Load, read_load
from tests.soak.abuses.target import Target

T = TypeVar("T")
PATIENCE_S = 60.0
PLACES = 200
"""More than sessions that a server has: here it is their number that is limited, not their memory."""
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
        return Scene(
            self.target, random.Random(0), time.monotonic() + PATIENCE_S, source=source or next(ATTACKERS)
        )

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
            with scene.caller() as caller:
                return await caller.ask(request)

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
def attacked_here(data: Path, config: AppConfig | None = None) -> Iterator[Attacked]:
    """The application in this process, where who is let in does not depend on how busy the machine is."""
    with serving(data, config, places=PLACES) as server:
        yield Attacked(Host(url=f"ws://{server.address}", pid=os.getpid()))


@contextmanager
def attacked_process(*options: str) -> Iterator[Attacked]:
    """`millstream serve`, with chunk times and a log of its own."""
    ready = threading.Event()
    done = threading.Event()
    started: list[Host] = []

    async def hold() -> None:
        try:
            async with serve([*MODEL, *SHORT, *options]) as host:
                started.append(host)
                ready.set()
                await asyncio.to_thread(done.wait)
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(hold()), name="attacked")
    thread.start()
    try:
        ready.wait()
        assert started, "the server did not start"
        yield Attacked(started[0])
    finally:
        done.set()
        thread.join()


class Faults(logging.Handler):
    """Log records that come with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def quiet_log() -> Iterator[None]:
    """Nothing that happens inside makes this process log a traceback."""
    faults = Faults()
    logging.getLogger().addHandler(faults)
    try:
        yield
        time.sleep(0.2)  # what a connection's end does comes after its last word
        gc.collect()  # an error that nobody asked for is logged when its task is forgotten
    finally:
        logging.getLogger().removeHandler(faults)
    assert faults.seen == []


def said(**fields: Any) -> str:
    return json.dumps(fields)
