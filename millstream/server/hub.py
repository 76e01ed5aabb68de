"""All sessions on the event loop's side: opens them, finds them, tells viewers once a second how they do, ends abandoned ones.

A session has two names, both unguessable: its `session_id` steers it, its `view_id` only shows it. Everything that touches the
model is the service's business, on a thread of its own; everything here runs on the event loop and never waits for a chunk.
Bounded: `max_sessions` stations, whether they run, wait or stand still.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from millstream.core.config import StreamConfig
from millstream.core.controls import WeightedPrompt, check_prompts
from millstream.core.errors import Overloaded, UnknownSession
from millstream.runtime.live_feed import LiveFeed
from millstream.runtime.service import OpenRequest, Service
from millstream.server.messages import Stats
from millstream.server.station import Station, StationParts

ID_BYTES = 16
"""Of the random numbers that name sessions and views."""
TICK_S = 1.0
STOP_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HubLimits:
    max_sessions: int = 64
    abandon_s: float = 120.0
    """A session that nobody watches for so long is ended."""
    threads: int = 2
    """That encode pictures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    """What clients are told of the model."""

    name: str
    stream: StreamConfig
    unknown_words: Callable[[str], list[str]]
    examples: tuple[str, ...]


class Hub:
    """Make it on the event loop, `start` it there, and `close` it before the loop ends."""

    def __init__(self, service: Service, card: ModelCard, *, limits: HubLimits | None = None) -> None:
        self.service = service
        self.card = card
        self.limits = limits or HubLimits()
        self.pool = ThreadPoolExecutor(self.limits.threads, thread_name_prefix="millstream-encode")
        self.stations: dict[str, Station] = {}
        self._views: dict[str, Station] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._parts = StationParts(service=service, pool=self.pool, unknown_words=card.unknown_words)
        self._ticker: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="millstream-ticker")

    async def close(self) -> None:
        """End every session and the engine's thread; a chunk under way is finished first."""
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.to_thread(self.service.close, STOP_S)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)
        self.pool.shutdown(cancel_futures=True)

    def open(
        self,
        prompts: tuple[WeightedPrompt, ...],
        config: StreamConfig,
        *,
        lead_s: float | None = None,
        may_wait: bool = False,
        unattended: Literal["pause", "run"] = "pause",
        takes_input: bool = False,
        max_chunks: int | None = None,
    ) -> Station:
        """A new session. Raises `Overloaded` when it cannot be, and what is wrong with what was asked."""
        check_prompts(prompts)
        request = OpenRequest(
            session_id=secrets.token_urlsafe(ID_BYTES),
            prompts=prompts,
            config=config,
            lead_s=lead_s,
            may_wait=may_wait,
            unattended=unattended,
            max_chunks=max_chunks,
            feed=LiveFeed((config.height, config.width)) if takes_input else None,
        )
        return self._open(request)

    def find(self, session_id: str) -> Station:
        """By the name that steers it."""
        return _found(self.stations.get(session_id))

    def find_view(self, view_id: str) -> Station:
        """By the name that only shows it."""
        return _found(self._views.get(view_id))

    def _open(self, request: OpenRequest) -> Station:
        if len(self.stations) >= self.limits.max_sessions:
            raise Overloaded(f"{self.limits.max_sessions} sessions are open already; try again later")
        station = Station(request, secrets.token_urlsafe(ID_BYTES), self._parts)
        self.service.open(request, station.tell)
        self.stations[station.session_id] = self._views[station.view_id] = station
        task = asyncio.get_running_loop().create_task(self._attend(station), name=f"millstream-station-{station.view_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return station

    async def _attend(self, station: Station) -> None:
        try:
            await station.run()
        finally:
            del self.stations[station.session_id], self._views[station.view_id]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._report()
            self._end_abandoned(time.monotonic())

    def _report(self) -> None:
        """How each session does, to those who watch it."""
        metrics = self.service.metrics().scheduler
        for each in metrics.sessions:
            station = self.stations.get(each.session_id)
            if station is None:
                continue
            stats = Stats(
                continuity=each.continuity,
                ahead_s=each.ahead_s,
                stalled_s=each.stalled_s,
                misses=each.misses,
                viewers=len(station.viewers),
                utilisation=metrics.utilisation,
            )
            for viewer in station.viewers:
                viewer.outbox.put_newest(stats)

    def _end_abandoned(self, now: float) -> None:
        for station in list(self.stations.values()):
            if not station.viewers and now - station.left_at > self.limits.abandon_s:
                self.service.end(station.session_id, f"nobody watched it for {self.limits.abandon_s:g} s")


def _found(station: Station | None) -> Station:
    if station is None or station.ended:
        raise UnknownSession("there is no such session; it may have ended")
    return station
