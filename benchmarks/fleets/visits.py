"""People who come and go while a replica is killed and one is drained, as a trace for the simulator to be
held against."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.fleets.people import Person
from millstream.fleet.local_fleet import RunningFleet
from millstream.fleet.trace import FleetTrace, write_trace


async def comes(fleet: RunningFleet, person: Person, at_s: float, stay_s: float) -> None:
    await asyncio.sleep(at_s)
    await person.visit(fleet.url, stay_s)


async def a_while(
    fleet: RunningFleet, people: list[Person], seconds: float, mean_stay_s: float, draw: random.Random
) -> None:
    """One replica is killed after a third of the time, one drained after two."""
    coming = [
        asyncio.ensure_future(
            comes(fleet, person, draw.uniform(0, seconds), draw.expovariate(1 / mean_stay_s))
        )
        for person in people
    ]
    await asyncio.sleep(seconds / 3)
    os.kill((await asyncio.to_thread(_fullest, fleet))["pid"], signal.SIGKILL)
    await asyncio.sleep(seconds / 3)
    await asyncio.to_thread(lambda: fleet.order("drain", _fullest(fleet)["id"]))
    await asyncio.gather(*coming)


def _fullest(fleet: RunningFleet) -> dict[str, Any]:
    return max(fleet.ready(), key=lambda each: len(each["sessions"]))


def record_trace(
    fleet: RunningFleet, people: list[Person], seconds: float, mean_stay_s: float, seed: int, path: Path
) -> None:
    """For `python -m benchmarks.fleet_sim --trace FILE`. Late chunks are those that its people counted."""
    fleet.order("record")
    time.sleep(1.0)  # so that every replica has reported
    asyncio.run(a_while(fleet, people, seconds, mean_stay_s, random.Random(seed)))
    trace = msgspec.json.decode(fleet.trace(), type=FleetTrace)
    stalls = [stall for person in people for stall in person.stalls]
    seen = msgspec.structs.replace(trace.seen, misses=len(stalls), stalled_s=sum(stalls))
    write_trace(msgspec.structs.replace(trace, seen=seen), path)
    failed = [person.failed for person in people if person.failed]
    print(
        f"{len(trace.arrivals)} visits, {seen.moves} moves, {seen.restored} restored, {len(stalls)} late: "
        f"{path} {failed}"
    )
