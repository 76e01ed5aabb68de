"""A fleet's doors: what the gateway adds to a first picture and to each chunk that it passes on, how many
come in at once, how fast it says no."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from benchmarks.fleets.people import quantile
from millstream.client.async_client import connect_async
from millstream.client.chunk import ClientChunk
from millstream.client.connection import Connection
from millstream.core.client_messages import VERSION, Ask, End, Start, View
from millstream.core.errors import MillstreamError
from millstream.core.server_messages import ErrorMessage, Hello, MovedMessage
from millstream.fleet.local_fleet import RunningFleet


async def first_pictures(fleet: RunningFleet, count: int) -> dict[str, Any]:
    """Measure the delay that the gateway adds before a session reaches its replica, and to each chunk that it
    relays."""
    added = []
    first = []
    start = Start(version=VERSION, prompt="sea", fps=4.0, follow=True)
    for _ in range(count):
        begun = time.monotonic()
        connection = await Connection.open(fleet.url)
        assert isinstance(await connection.hear(), Hello)
        await connection.say(start)
        there = await sent_on(connection)
        added.append(time.monotonic() - begun)
        await there.hear()
        await there.say(start)
        while not isinstance(await there.hear(), ClientChunk):
            pass
        first.append(time.monotonic() - begun)
        await there.say(End())
        await there.close()
        await asyncio.sleep(0.5)
    return {
        "added_by_the_gateway_ms": 1000 * statistics.median(added),
        "added_p95_ms": 1000 * (quantile(added, 0.95) or 0),
        "first_picture_ms": 1000 * statistics.median(first),
        **await relayed(fleet, 3 * count),
    }


async def relayed(fleet: RunningFleet, count: int) -> dict[str, float]:
    """Measure how much later chunks arrive at a viewer through the gateway than at a direct viewer of the
    same session. Chunks have as many bytes as those of a larger model."""
    async with connect_async(fleet.url, format="raw") as owner:
        live = await owner.start(Ask(prompt="sea", fps=12.0, size="96x96"))
        direct = await viewer(fleet, live.view, follow=True)
        through = await viewer(fleet, live.view, follow=False)
        at: list[dict[int, float]] = [{}, {}]
        sizes: list[int] = []

        async def watch(connection: Connection, seen: dict[int, float]) -> None:
            while len(seen) < count:
                heard = await connection.hear()
                if isinstance(heard, ClientChunk):
                    seen[heard.header.index] = time.monotonic()
                    sizes.append(len(heard.data))

        await asyncio.gather(watch(direct, at[0]), watch(through, at[1]))
        await asyncio.gather(direct.close(), through.close())
    both = sorted(set(at[0]) & set(at[1]))[1:]  # each gets the last chunk at once when it comes
    later = [at[1][index] - at[0][index] for index in both]
    return {"relay_adds_a_chunk_ms": 1000 * statistics.median(later), "relayed_chunk_bytes": max(sizes)}


async def viewer(fleet: RunningFleet, view: str, *, follow: bool) -> Connection:
    opening = View(version=VERSION, view=view, formats=("raw",), follow=follow)
    connection = await Connection.open(fleet.url)
    await connection.hear()
    await connection.say(opening)
    if not follow:
        return connection
    there = await sent_on(connection)
    await there.hear()
    await there.say(opening)
    return there


async def sent_on(connection: Connection) -> Connection:
    """To where the gateway says."""
    moved = await connection.hear()
    assert isinstance(moved, MovedMessage), f"not sent anywhere: {moved}"
    await connection.close()
    return await Connection.open(moved.url, ticket=moved.ticket)


async def connects(fleet: RunningFleet, count: int) -> dict[str, Any]:
    """Evenly over their share of a minute: each is greeted, let in and sent to a replica."""
    took = list[float]()
    errors = list[str]()
    async with connect_async(fleet.url, format="raw") as owner:
        view = (await owner.start(Ask(prompt="sea", fps=4.0))).view

        async def one(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            begun = time.monotonic()
            try:
                connection = await Connection.open(fleet.url)
                await connection.hear()
                await connection.say(View(version=VERSION, view=view, follow=True))
                moved = await connection.hear()
                took.append(time.monotonic() - begun)
                if not isinstance(moved, MovedMessage):
                    errors.append(str(moved)[:200])
                await connection.close()
            except MillstreamError as error:
                errors.append(str(error)[:200])

        await asyncio.gather(*(one(60.0 * number / 1000) for number in range(count)))
    return {
        "count": count,
        "a_minute": 1000,
        "errors": errors[:5],
        "num_errors": len(errors),
        "p99_ms": _ms(took, 0.99),
    }


async def refusals(fleet: RunningFleet, count: int) -> dict[str, Any]:
    """One after another, of what no replica has room for."""
    took = list[float]()
    said = ""
    connection = await Connection.open(fleet.url)
    await connection.hear()
    for _ in range(count):
        begun = time.monotonic()
        await connection.say(
            Start(version=VERSION, prompt="sea", size="128x128", fps=240.0, strict=True, follow=True)
        )
        heard = await connection.hear()
        assert isinstance(heard, ErrorMessage), f"let in: {heard}"
        took.append(time.monotonic() - begun)
        said = heard.message
        await asyncio.sleep(0.02)
    await connection.close()
    return {"count": count, "median_ms": _ms(took, 0.5), "p99_ms": _ms(took, 0.99), "said": said}


def _ms(seconds: list[float], share: float) -> float | None:
    found = quantile(seconds, share)
    return None if found is None else 1000 * found
