"""A load run: people at a server for a while, then many short visits; what they observed, and the server's
memory, threads and tasks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from millstream.core.config import MAX_FPS, MIN_FPS
from millstream.core.errors import ConfigError, LoadError
from millstream.load.connects import ConnectsResult, connect_and_leave
from millstream.load.host import Host, Usage, Watch, is_ready, serve
from millstream.load.loopback import check_loopback
from millstream.load.person import Person, Visit
from millstream.load.record import PersonResult, Samples
from millstream.load.script import temper
from millstream.load.summary import Summary

MAX_SESSIONS = 64
MAX_SECONDS = 3600.0
MAX_CONNECTS = 1000
ARRIVAL_S = 1.0
"""Seconds within which all people come."""
WARM_CONNECTS = 20
"""Short visits before memory is compared: what only the first ones take is not growth."""
SETTLE_S = 2.0
"""For the server to tidy up after the last goodbye."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadRequest:
    sessions: int = 4
    seconds: float = 60.0
    fps: float | None = None
    """Rate that each asks for, and no less; None: as the server chooses."""
    size: str | None = None
    """HEIGHTxWIDTH; None: as the server has it."""
    script: str = "calm"
    connects: int = 0
    """Short visits afterwards."""
    seed: int = 0
    url: str | None = None
    """A running server on this machine; None: one of our own."""
    server_options: tuple[str, ...] = ()
    """For a server of our own."""

    def __post_init__(self) -> None:
        if not 1 <= self.sessions <= MAX_SESSIONS:
            raise ConfigError(f"sessions must be between 1 and {MAX_SESSIONS}, got {self.sessions}")
        if not 0 < self.seconds <= MAX_SECONDS:
            raise ConfigError(f"seconds must be above 0 and at most {MAX_SECONDS:g}, got {self.seconds:g}")
        if not 0 <= self.connects <= MAX_CONNECTS:
            raise ConfigError(f"connects must be between 0 and {MAX_CONNECTS}, got {self.connects}")
        if self.fps is not None and not MIN_FPS <= self.fps <= MAX_FPS:
            raise ConfigError(f"fps must be between {MIN_FPS:g} and {MAX_FPS:g}, got {self.fps:g}")
        temper(self.script)
        if self.url is not None:
            check_loopback(self.url)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadResult:
    people: tuple[PersonResult, ...]
    everybody: dict[str, Summary | None]
    """Over all people together."""
    server: Usage | None
    """None where the server does not tell its memory."""
    connects: ConnectsResult | None
    after_connects: Usage | None
    """From a few visits in to the end of them."""


async def run_load(request: LoadRequest) -> LoadResult:
    async with _host(request) as host:
        return await put_load(host, request)


async def put_load(host: Host, request: LoadRequest) -> LoadResult:
    """Run the load on a server that is there already; `url` and `server_options` are ignored."""
    watch = Watch(host.read)
    async with _watching(watch):
        people = await _visit(host, request)
    samples = Samples()
    for person in people:
        samples.add(person.record.samples)
    results = tuple(person.record.result(time.monotonic()) for person in people)
    connects, usage = await put_connects(host, request) if request.connects else (None, None)
    return LoadResult(
        people=results,
        everybody=samples.summaries(),
        server=watch.usage(),
        connects=connects,
        after_connects=usage,
    )


async def _visit(host: Host, request: LoadRequest) -> list[Person]:
    chance = random.Random(request.seed)
    visit = Visit(
        url=host.url,
        temper=temper(request.script),
        fps=request.fps,
        size=request.size,
        seed=request.seed,
        until=time.monotonic() + request.seconds,
    )
    people = [Person(visit, number) for number in range(request.sessions)]

    async def come(person: Person) -> None:
        await asyncio.sleep(chance.uniform(0, min(ARRIVAL_S, request.seconds / 10)))
        await person.live()

    await asyncio.gather(*map(come, people))
    return people


async def put_connects(host: Host, request: LoadRequest) -> tuple[ConnectsResult, Usage | None]:
    """Short visits alone, and what they did to the server's memory."""
    until = time.monotonic() + MAX_SECONDS
    await connect_and_leave(
        host.url, connects=min(WARM_CONNECTS, request.connects), fps=request.fps, until=until
    )
    await asyncio.sleep(SETTLE_S)
    watch = Watch(host.read)
    async with _watching(watch):
        result = await connect_and_leave(host.url, connects=request.connects, fps=request.fps, until=until)
    return result, watch.usage()


@asynccontextmanager
async def _host(request: LoadRequest) -> AsyncIterator[Host]:
    if request.url is None:
        async with serve(request.server_options) as host:
            yield host
        return
    if not await is_ready(request.url):
        raise LoadError(f"no server is ready at {request.url}; start one with: millstream serve")
    yield Host(url=request.url, pid=None)


@asynccontextmanager
async def _watching(watch: Watch) -> AsyncIterator[None]:
    """Sample through the block, and once more when the server has tidied up."""
    sampling = asyncio.create_task(watch.run())
    try:
        yield
        await asyncio.sleep(SETTLE_S)
    finally:
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
    await watch.sample()
