"""People of a fleet, each steered alike at the same chunks: whatever happens to a session, it must show the
same bits.

A person counts what comes twice, what is missing, what differs, and which acknowledged control did not apply
where it was told to. A gap is from one chunk to the next, against what was buffered when it began.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.client.async_client import AsyncClient, connect_async
from millstream.client.chunk import ClientChunk
from millstream.core.client_messages import Ask
from millstream.core.controls import SetPrompt
from millstream.core.errors import ClientError
from millstream.fleet.local_fleet import RunningFleet

PROMPTS = ("a calm sea", "a storm", "a lighthouse", "a desert")
STEER_EVERY = 5
"""Chunks."""
BACK_S = 120.0
LABEL = 8
"""Letters of a session's id that a fleet shows."""


@dataclass
class Person:
    fps: float
    client: AsyncClient = field(init=False)
    session: str = ""
    digests: dict[int, str] = field(default_factory=dict)
    arrivals: list[float] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """From chunk to chunk, and what was buffered when it began."""
    twice: int = 0
    missing: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    dry_at: float = 0.0
    failed: str = ""

    async def live(self, url: str, until: asyncio.Event) -> None:
        try:
            async with connect_async(url, format="raw") as self.client:
                self.session = (await self.client.start(Ask(prompt=PROMPTS[0], fps=self.fps, seed=7))).session
                steering = asyncio.ensure_future(self.steer())
                while not until.is_set():
                    chunk = await self.client.next_chunk()
                    assert chunk is not None, "it ended by itself"
                    self.record(chunk)
                steering.cancel()
        except (ClientError, AssertionError) as error:
            self.failed = str(error)

    async def visit(self, url: str, stay_s: float) -> None:
        """Wait for a place if need be, stay for so long and go."""
        try:
            async with connect_async(url, format="raw") as self.client:
                await self.client.start(Ask(prompt=PROMPTS[0], fps=self.fps, strict=True, wait=True))
                leave_at = time.monotonic() + stay_s
                while (left := leave_at - time.monotonic()) > 0:
                    self.record(await asyncio.wait_for(self.client.next_chunk(), left))
        except asyncio.TimeoutError:
            return
        except ClientError as error:
            self.failed = str(error)

    def record(self, chunk: ClientChunk | None) -> None:
        if chunk is None:
            return
        now = time.monotonic()
        index = chunk.index
        expected = max(self.digests, default=-1) + 1
        self.applied |= {receipt.control_id: receipt.chunk_index for receipt in chunk.header.receipts}
        if index < expected:
            self.twice += 1
            return
        self.missing += index - expected
        self.digests[index] = hashlib.sha256(chunk.frames.tobytes()).hexdigest()
        if self.arrivals:
            self.gaps.append((now - self.arrivals[-1], max(0.0, self.dry_at - self.arrivals[-1])))
        self.arrivals.append(now)
        self.dry_at = max(self.dry_at, now) + chunk.header.frames / chunk.fps

    async def steer(self) -> None:
        """Always some chunks ahead, so that everybody's prompts change at the same ones."""
        number = 1
        while True:
            chunk = STEER_EVERY * number
            while max(self.digests, default=-1) < chunk - STEER_EVERY:
                await asyncio.sleep(0.05)
            receipt = await self.client.steer(
                SetPrompt(prompt=PROMPTS[number % len(PROMPTS)], mode="cut"), at_chunk=chunk
            )
            self.asked[receipt.control_id] = receipt.chunk_index
            number += 1

    @property
    def stalls(self) -> list[float]:
        """How long nothing was left to play, each time."""
        return [gap - lead for gap, lead in self.gaps if gap > lead]

    @property
    def lost_controls(self) -> int:
        """Acknowledged for a chunk that was shown, and not applied there."""
        shown = max(self.digests, default=-1)
        return sum(self.applied.get(name) != chunk for name, chunk in self.asked.items() if chunk <= shown)


def differing(people: list[Person]) -> int:
    """Chunks of which not everybody was shown the same bits."""
    indices = {index for person in people for index in person.digests}
    return sum(
        len({person.digests[index] for person in people if index in person.digests}) > 1 for index in indices
    )


def summary(people: list[Person]) -> dict[str, Any]:
    stalls = [stall for person in people for stall in person.stalls]
    return {
        "people": len(people),
        "chunks": sum(len(person.digests) for person in people),
        "acknowledged_controls": sum(len(person.asked) for person in people),
        "acknowledged_controls_lost": sum(person.lost_controls for person in people),
        "chunks_twice": sum(person.twice for person in people),
        "chunks_missing": sum(person.missing for person in people),
        "chunks_differing": differing(people),
        "did_not_come_back": [person.failed for person in people if person.failed],
        "gap_s_p99": quantile([gap for person in people for gap, _ in person.gaps], 0.99),
        "buffered_s_median": quantile([lead for person in people for _, lead in person.gaps], 0.5),
        "gaps_longer_than_what_was_buffered": len(stalls),
        "longest_stall_s": max(stalls, default=0.0),
    }


def quantile(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return None if not ordered else ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Back(NamedTuple):
    """When somebody saw a new chunk again after something had happened."""

    seconds: float
    """Since it began; of one whose server died, to the first chunk that came after that."""
    was_hurt: bool


async def disturbed(
    fleet: RunningFleet,
    people: list[Person],
    disturb: Callable[[], object],
    count: int,
    pause_s: float,
    *,
    wait: bool = True,
) -> list[Back]:
    """Live, and have something happen so many times; when everybody was back, each time. Without `wait`,
    nobody is waited for before it happens again."""
    until = asyncio.Event()
    back = list[Back]()
    living = [asyncio.ensure_future(person.live(fleet.url, until)) for person in people]
    while any(len(person.digests) < 3 and not person.failed for person in people):
        await asyncio.sleep(0.1)
    for _ in range(count):
        await asyncio.to_thread(fleet.wait)
        if wait:
            back += await _once(fleet, people, disturb)
        else:
            await asyncio.to_thread(disturb)
        await asyncio.sleep(pause_s)
    until.set()
    await asyncio.gather(*living)
    return back


async def _once(fleet: RunningFleet, people: list[Person], disturb: Callable[[], object]) -> list[Back]:
    """People go on while it happens, which may take long by itself."""
    before = {session["session"]: each["id"] for each in fleet.ready() for session in each["sessions"]}
    begun = time.monotonic()
    began_at = time.time()
    await asyncio.to_thread(disturb)
    give_up = time.monotonic() + BACK_S
    await asyncio.to_thread(fleet.wait, 1)
    deaths = {
        event["replica_id"]: begun + event["at"] - began_at
        for event in fleet.events("death")
        if event["at"] > began_at
    }
    back = []
    for person in [person for person in people if not person.failed]:
        died_at = deaths.get(before.get(person.session[:LABEL], ""))
        since = begun if died_at is None else died_at
        while person.arrivals[-1] <= since and not person.failed and time.monotonic() < give_up:
            await asyncio.sleep(0.02)
        first = next((arrival for arrival in person.arrivals if arrival > since), time.monotonic())
        back.append(Back(first - begun, died_at is not None))
    return back
