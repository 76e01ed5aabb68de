"""All abuses in seeded random order beside several viewers, for as long as wished: continuity, and memory
that stays level."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millstream.core.errors import LoadError
from millstream.load.gate import LIMITS
from millstream.load.host import Host
from millstream.load.run import LoadRequest, LoadResult, put_load
from tests.soak.abuses.attackers import send_attacker
from tests.soak.abuses.beside import AHEAD_S, FPS, SIZE
from tests.soak.abuses.kinds import ABUSES
from tests.soak.abuses.server import Load, read_load, slope_per_hour

TURN_S = (8.0, 20.0)
"""How long one attacker goes on."""
AT_ONCE = 2
SAMPLE_S = 5.0
WARM = 0.1
"""Share of the run that memory is not judged by: what only the first take is not growth."""


def turns(seed: int, lane: int) -> Iterator[tuple[str, float]]:
    """Kinds and seconds without end: every kind once before any comes again."""
    chance = random.Random(f"{seed}/lane/{lane}")
    while True:
        for kind in chance.sample(sorted(ABUSES), len(ABUSES)):
            yield kind, chance.uniform(*TURN_S)


@dataclass(slots=True)
class Series:
    """The server's load over time; a run's length bounds it."""

    times: list[float] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)

    async def sample(self, host: Host) -> None:
        """Until cancelled."""
        begun = time.monotonic()
        while True:
            load = await asyncio.to_thread(read_load, host)
            if load is not None:
                self.times.append(time.monotonic() - begun)
                self.loads.append(load)
            await asyncio.sleep(SAMPLE_S)

    def summary(self) -> dict[str, Any]:
        warm = int(WARM * len(self.times))
        return {
            name: _levels(self.times[warm:], [getattr(load, name) for load in self.loads[warm:]], level)
            for name, level in LEVELS.items()
        }


def least_tenth(values: Sequence[float]) -> float:
    """Return the level with hardly any client connected: the tenth percentile."""
    return sorted(values)[len(values) // 10]


LEVELS: dict[str, Callable[[Sequence[float]], float]] = {
    "resident_bytes": statistics.median,
    "threads": statistics.median,
    "descriptors": least_tenth,
}
"""Function for the level of each resource: the hundreds of sockets that an attacker holds are no leak."""


def _levels(
    times: Sequence[float], values: Sequence[float], level: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    quarter = max(1, len(values) // 4)
    first = level(values[:quarter])
    last = level(values[-quarter:])
    return {
        "first_quarter": first,
        "last_quarter": last,
        "growth": last / first - 1,
        "slope_per_hour": slope_per_hour(times, values),
        "largest": max(values),
    }


@dataclass(frozen=True, slots=True)
class Soaked:
    people: LoadResult
    series: Series
    turns: Counter[str]
    broken: list[str]
    """Attackers that did not end as they should."""


async def soak(host: Host, *, seconds: float, viewers: int, seed: int) -> Soaked:
    series = Series()
    taken = Counter[str]()
    broken = list[str]()
    sampling = asyncio.ensure_future(series.sample(host))
    watching = asyncio.ensure_future(
        put_load(host, LoadRequest(sessions=viewers, seconds=seconds, fps=FPS, size=SIZE, seed=seed))
    )
    until = time.monotonic() + seconds - AHEAD_S

    async def attack(lane: int) -> None:
        await asyncio.sleep(AHEAD_S)
        for number, (kind, turn_s) in enumerate(turns(seed, lane)):
            turn_s = min(turn_s, until - time.monotonic())
            if turn_s <= 0:
                return
            taken[kind] += 1
            try:
                await send_attacker(kind, host.url, seconds=turn_s, seed=seed + number)
            except (LoadError, asyncio.TimeoutError) as error:
                broken.append(str(error) or f"the attacker {kind} did not end")

    try:
        await asyncio.gather(*(attack(lane) for lane in range(AT_ONCE)))
        people = await watching
    finally:
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
    return Soaked(people, series, taken, broken)


def missed_in_soak(measured: dict[str, Any]) -> list[str]:
    """A line for each limit that was missed."""
    lines = [
        f"viewer {viewer['person']}: continuity {viewer['continuity'] or 0.0:.4f}, at least "
        f"{LIMITS.continuity:g} is promised"
        for viewer in measured["viewers"]
        if (viewer["continuity"] or 0.0) < LIMITS.continuity
    ]
    lines += [
        f"viewer {viewer['person']}: {viewer['errors'][0]}"
        for viewer in measured["viewers"]
        if viewer["errors"]
    ]
    for name, level in measured["server"].items():
        if level["growth"] > LIMITS.memory_growth:
            lines.append(f"{name} grew by {level['growth']:.1%} from the first to the last quarter")
    return [*lines, *measured["broken_attackers"]]
