"""All sessions on the event loop's side: opens them, finds them, looks after them once a second, ends abandoned ones.

A session has two names, both unguessable: its `session_id` steers it, its `view_id` only shows it. Everything that touches the
model is the service's business, on a thread of its own; everything here runs on the event loop and never waits for a chunk.
Bounded: `max_sessions` sessions of one client, and an eighth more of all together.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from millstream.core.config import StreamConfig
from millstream.core.controls import AnyControl, Receipt, WeightedPrompt, check_prompts
from millstream.core.errors import MillstreamError, UnknownFile, UnknownSession
from millstream.server.access.keys import NAMELESS, Key
from millstream.server.access.shares import Quota
from millstream.server.sessions.archive import Archive, SessionJournal
from millstream.server.sessions.file_store import FileStore, Kept, within_quota
from millstream.server.sessions.grace import Grace
from millstream.server.sessions.host_meter import HostMeter
from millstream.server.sessions.keeper import Keeper, Returned
from millstream.server.sessions.live_session import LiveSession, LiveSessionParts
from millstream.server.sessions.metrics import Metrics
from millstream.server.sessions.outputs.destinations import Destination
from millstream.server.sessions.outputs.outputs import Outputs
from millstream.server.sessions.recordings import Recordings
from millstream.server.sessions.sources import Sources
from millstream.server.sessions.threads import num_encoders, start_threads
from millstream.server.sessions.upkeep import end_abandoned, report
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest
from millstream.session.feed import LiveFeed
from millstream.session.pacing import RateKind

T = TypeVar("T")

TICK_S = 1.0
ID_BYTES = 16
"""Of the random numbers that name sessions and views."""
MAX_ENDED = 64
"""Sessions that are still described after their end."""
SETTLE_S = 5.0
"""For a session to end whose connection has closed."""
LOOK_S = 0.01
"""From one look to the next, whether viewers have taken what was left for them."""
ANSWER_S = 1.0
"""For a service to say that it waits no longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HubLimits:
    max_sessions: int = 64
    """Of one client, whether they run, wait or stand still; all clients together may have an eighth more."""
    abandon_s: float = 120.0
    """A session that nobody watches for so long, and whose recording takes nothing, is ended."""
    leave_line_s: float = 10.0
    """One that waits in line and has nobody at it loses its place after so long."""
    threads: int = field(default_factory=num_encoders)
    """That encode pictures."""
    idle_s: float = 60.0
    """A session that stands still for so long is moved to host memory."""
    max_life_s: float | None = None
    """How long any session may live; None: for ever."""
    max_chunks: int | None = None
    """How much it may make."""
    max_branches: int = 16
    """Sessions forked from each other that live at a time."""
    keep_chunks: int | None = None
    """After so many chunks a session's state is kept again for a server that starts anew; None: never."""
    grace_s: float = 10.0
    """For everything that is waited for once the server is told to stop."""
    destinations: tuple[Destination, ...] = ()
    """Where outputs may go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    """What clients are told of the model."""

    name: str
    stream: StreamConfig
    unknown_words: Callable[[str], list[str]]
    examples: tuple[str, ...]
    fps: float | Literal["auto"] = "auto"
    """Where a client says none."""
    lead_s: float | None = None
    """The same; None: two chunks."""
    moves: bool = False
    """Whether sessions can go on at another server."""
    sources: Sources = field(default_factory=Sources)


class SessionHub:
    """Make it on the event loop, `start` it there, and `close` it before the loop ends."""

    def __init__(
        self,
        service: Service,
        card: ModelCard,
        *,
        archive: Archive | None = None,
        stores: Mapping[str, FileStore] | None = None,
        limits: HubLimits | None = None,
    ) -> None:
        """`stores` are those of keys with names; everybody else's files are on the archive's own."""
        self.service = service
        self.card = card
        self.limits = limits or HubLimits()
        self.grace = Grace(self.limits.grace_s)
        self.metrics = Metrics()
        self.pool = ThreadPoolExecutor(self.limits.threads, thread_name_prefix="millstream-encode")
        self.live_sessions: dict[str, LiveSession] = {}
        self._views: dict[str, LiveSession] = {}
        self.leaving: dict[str, str] = {}
        """Sessions whose connection has gone and that have not ended yet, and whose client's they are."""
        self.returning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Whose kept state is being fetched."""
        self._ended: OrderedDict[str, LiveSession] = OrderedDict()
        """The last few, for those who ask what became of theirs."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._meter = HostMeter(self.limits.threads)
        self._parts = LiveSessionParts(
            service=service, pool=self.pool, unknown_words=card.unknown_words, metrics=self.metrics, meter=self._meter
        )
        self._archive = archive
        self._stores = stores or {}
        self.keeper = self._made_keeper()
        self.recordings = Recordings(self.archive_of, self.spawn)
        self.outputs = Outputs(self.limits.destinations, self.spawn)
        self._ticker: asyncio.Task[None] | None = None
        self._over = False

    @property
    def archive(self) -> Archive:
        """Where things are kept. Raises where this server keeps nothing."""
        if self._archive is None:
            raise UnknownFile("this server keeps no recordings, journals or snapshots")
        return self._archive

    def archive_of(self, key: Key) -> Archive:
        """Where things are kept that belong to a key, and nobody else's."""
        return self.archive.on(self._stores[key.name]) if key.name else self.archive

    def start(self) -> None:
        start_threads(self.pool, self.limits.threads)
        if self._archive is not None:
            self._archive.start()
        if self.keeper is not None:
            self.keeper.start(self.card.stream)
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="millstream-ticker")

    async def farewell(self) -> float:
        """End every session, and give those who watch the time to hear of it. Seconds that connections may then take."""
        watched = list(self.live_sessions.values())
        await self._end()
        give_up = time.monotonic() + self.grace.half_s()
        while any(live_session.viewers for live_session in watched) and time.monotonic() < give_up:
            await asyncio.sleep(LOOK_S)
        return self.grace.half_s()

    async def close(self) -> None:
        """End every session and all threads. What waits for a disk is written, unless the grace is over."""
        await self._end()
        self.pool.shutdown(cancel_futures=True)
        for kept in (self.keeper, self._archive):
            if kept is not None:
                kept.close(hurry=not self.grace.left_s())

    def request(
        self,
        prompts: tuple[WeightedPrompt, ...],
        config: StreamConfig,
        *,
        rate: RateKind = "asked",
        lead_s: float | None = None,
        may_wait: bool = False,
        unattended: Literal["pause", "run"] = "pause",
        source: str | None = None,
        weight: float = 1.0,
        max_chunks: int | None = None,
        key: Key = NAMELESS,
        session_id: str = "",
    ) -> OpenRequest:
        """A new session as it is asked for, of so many chunks where that is said. `source` names its input; empty: what its
        owner sends. Raises what is wrong with it."""
        check_prompts(prompts)
        config = key.paced(config, rate)
        return OpenRequest(
            session_id=session_id or secrets.token_urlsafe(ID_BYTES),
            prompts=prompts,
            config=config,
            rate=rate,
            lead_s=self.card.lead_s if lead_s is None else lead_s,
            may_wait=may_wait,
            unattended=unattended,
            weight=weight * key.weight,
            owner=key.name,
            **self.bounds | ({} if max_chunks is None else {"max_chunks": max_chunks}),
            feed=None if source is None else LiveFeed((config.height, config.width)),
            source=source or "",
        )

    def open(
        self, prompts: tuple[WeightedPrompt, ...], config: StreamConfig, *, client: str = "", key: Key = NAMELESS, **terms: Any
    ) -> LiveSession:
        """A new session, on the terms of `request`. Raises `Overloaded` when it cannot be, and what is wrong with it."""
        request = self.request(prompts, config, key=key, **terms)
        journal = self.journal(request.session_id, request.config, key)
        return self.opened(replace(request, journal=journal), client, key)

    async def control(self, live_session: LiveSession, control: AnyControl, at_chunk: int | None = None) -> Receipt:
        """Steer it. What is acknowledged is kept, where controls are."""
        receipt = live_session.control(control, at_chunk=at_chunk)
        if self.keeper is not None:
            with live_session.before_next():
                await self.keeper.log(live_session, control, receipt)
        return receipt

    async def save(self, live_session: LiveSession) -> Kept:
        archive, session_id = self.archive_of(live_session.key), live_session.session_id
        save = partial(archive.save, self.service, session_id, owner=live_session.client)
        kept = await within_quota(live_session.key, archive.store, save)
        live_session.snapshots.append(kept.name)
        return kept

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Something to be done whether or not whoever asked for it is still there."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def find(self, session_id: str, key: Key = NAMELESS) -> LiveSession:
        """By the name that steers it, for the key that opened it; to others it is not there."""
        live_session = self.live_sessions.get(session_id)
        return _found(live_session if live_session is not None and live_session.key == key else None)

    def leave(self, live_session: LiveSession) -> None:
        """Its connection has closed, and with it it ends, when its chunk is done."""
        if live_session.session_id in self.live_sessions:
            self.leaving[live_session.session_id] = live_session.client
            self.service.end(live_session.session_id, "its connection has closed")

    async def settle(self, client: str) -> None:
        """Wait until what this client has left is gone: a page that starts anew needs the place it had a moment ago."""
        give_up = time.monotonic() + SETTLE_S
        while client in self.leaving.values() and time.monotonic() < give_up:
            await asyncio.sleep(SETTLE_S / 100)

    def find_known(self, session_id: str, key: Key = NAMELESS) -> LiveSession:
        """The same, also of one that has ended."""
        ended = self._ended.get(session_id)
        if session_id not in self.live_sessions and ended is not None and ended.key == key:
            return ended
        return self.find(session_id, key)

    def sessions_of(self, key: Key) -> list[LiveSession]:
        return [live_session for live_session in self.live_sessions.values() if live_session.key == key]

    def find_view(self, view_id: str) -> LiveSession:
        """By the name that only shows it."""
        return _found(self._views.get(view_id))

    def journal(self, session_id: str, config: StreamConfig, key: Key) -> SessionJournal | None:
        """None where nothing is kept."""
        return None if self._archive is None else self.archive_of(key).journal(session_id, config)

    def _made_keeper(self) -> Keeper | None:
        every = self.limits.keep_chunks
        return None if every is None else Keeper(self.archive_of, self.service, self.spawn, every=every)

    @property
    def bounds(self) -> dict[str, Any]:
        """Of every session of this server."""
        limits = self.limits
        return dict(idle_s=limits.idle_s, max_life_s=limits.max_life_s, max_chunks=limits.max_chunks)

    async def _end(self) -> None:
        """Once: a model call that outlasts everybody's patience is not waited for again."""
        if self._over:
            return
        self._over = True
        if self._ticker is not None:
            self._ticker.cancel()
        if self.keeper is not None:
            await self.keeper.keep_all(self.grace.half_s())
        patience_s = self.grace.half_s()
        with suppress(asyncio.TimeoutError):  # all threads may be at something that hangs
            await asyncio.wait_for(asyncio.to_thread(self.service.close, patience_s), patience_s + ANSWER_S)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.grace.half_s())

    def opened(self, request: OpenRequest, client: str, key: Key, back: Returned | None = None) -> LiveSession:
        key.check_sessions(len(self.sessions_of(key)))
        own = sum(live_session.client == client for live_session in self.live_sessions.values())
        Quota(self.limits.max_sessions).check("sessions", own=own, all=len(self.live_sessions))
        view_id = secrets.token_urlsafe(ID_BYTES) if back is None else back.kept.view_id
        live_session = LiveSession(request, view_id, self._parts, client=client, key=key)
        if isinstance(request.journal, SessionJournal):
            request.journal.tell = live_session.tell
            live_session.journal_name = request.journal.name
        try:
            self.service.open(request, live_session.tell if self.keeper is None else self.keeper.follow(live_session, back))
        except MillstreamError:
            self.let_be(live_session)
            raise
        self.live_sessions[live_session.session_id] = self._views[live_session.view_id] = live_session
        self.spawn(self._attend(live_session))
        if request.source:
            self.spawn(self.card.sources.feed(live_session, self.pool))
        return live_session

    def let_be(self, live_session: LiveSession) -> None:
        """One that has not come to its place: what was kept of it stays."""
        if self.keeper is not None:
            self.keeper.let_be(live_session.session_id)

    async def _attend(self, live_session: LiveSession) -> None:
        try:
            await live_session.run()
        finally:
            del self.live_sessions[live_session.session_id], self._views[live_session.view_id]
            self.leaving.pop(live_session.session_id, None)
            self._ended[live_session.session_id] = live_session
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
            if self.keeper is not None:
                self.keeper.ended(live_session)
            self.outputs.forget(live_session)
            await self.recordings.stop(live_session)
            journal = live_session.request.journal
            if isinstance(journal, SessionJournal):
                await self.archive_of(live_session.key).keep_journal(journal, owner=live_session.client)
            live_session.let_go()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            report(self.live_sessions, self.service.metrics())
            patience = dict(abandon_s=self.limits.abandon_s, leave_line_s=self.limits.leave_line_s)
            end_abandoned(self.live_sessions, time.monotonic(), **patience, end=self.service.end, let_be=self.let_be)
            self.service.hand_over_takes(self._meter.read(time.thread_time()))


def _found(live_session: LiveSession | None) -> LiveSession:
    if live_session is None or live_session.ended:
        raise UnknownSession("there is no such session; it may have ended")
    return live_session
