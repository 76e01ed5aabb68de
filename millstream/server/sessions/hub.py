"""All sessions on the event loop's side: opens them, finds them, looks after them once a second, ends
abandoned ones.

They are found in `live_sessions.py`; branches, sessions that come back and outputs are parts of it. What
touches the model is the service's business, on a thread of its own; everything here runs on the event loop
and never waits for a chunk. Bounded: `max_sessions` sessions of one client, and an eighth more of all
together."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

from millstream.core.client_messages import Ask, ProtocolError
from millstream.core.conditions import Picture
from millstream.core.config import StreamConfig
from millstream.core.controls import WeightedPrompt, check_prompts
from millstream.core.errors import MillstreamError, UnknownFile
from millstream.core.keys import NAMELESS, Key
from millstream.core.reading import PromptReading, combined
from millstream.core.server_messages import Stats
from millstream.server.access.reading import PaidReader
from millstream.server.access.shares import Quota
from millstream.server.sessions.archive import KEEPS_NOTHING, Archive, SessionJournal
from millstream.server.sessions.branches import Branches
from millstream.server.sessions.file_store import FileStore
from millstream.server.sessions.grace import Grace
from millstream.server.sessions.host_meter import HostMeter
from millstream.server.sessions.keeper import Keeper, Returned
from millstream.server.sessions.live_session import Lineage, LiveSession, LiveSessionParts, about_picture
from millstream.server.sessions.live_sessions import LiveSessions
from millstream.server.sessions.metrics import Metrics
from millstream.server.sessions.model_card import ModelCard
from millstream.server.sessions.opener import ID_BYTES
from millstream.server.sessions.outputs.destinations import Destination
from millstream.server.sessions.outputs.outputs import Outputs
from millstream.server.sessions.pictures import PictureFitter
from millstream.server.sessions.restorer import SessionRestorer
from millstream.server.sessions.threads import num_encoders, start_threads
from millstream.serving.notices import Noted
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest
from millstream.session.feed import LiveFeed
from millstream.session.pacing import RateKind

T = TypeVar("T")

TICK_S = 1.0
CLOSED_S = 5.0
"""Seconds for a session to end whose connection has closed."""
MAX_MIXES = 256
"""Most mixes of prompts whose reading is remembered."""
LOOK_S = 0.01
"""Seconds from one look to the next, whether viewers have taken what was left for them."""
ANSWER_S = 1.0
"""Seconds for a service to report that it waits no longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HubLimits:
    max_sessions: int = 64
    """Most sessions of one client that run, wait or stand still; all together may have an eighth more."""
    abandon_s: float = 120.0
    """Seconds without a viewer after which a session is ended whose recording takes nothing."""
    leave_line_s: float = 10.0
    """Seconds without a client after which a session that waits in line loses its place."""
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
        self.reader = PaidReader()
        self.pictures = PictureFitter()
        self.live_sessions = LiveSessions()
        self._closing: dict[str, str] = {}
        """Clients by the session whose connection has gone and that has not ended yet."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._meter = HostMeter(self.limits.threads)
        self._archive = archive
        self._stores = stores or {}
        self.keeper = self._made_keeper()
        self._parts = LiveSessionParts(
            service=service,
            pool=self.pool,
            read=lru_cache(MAX_MIXES)(partial(_read, card.read)),
            metrics=self.metrics,
            meter=self._meter,
            archive_of=self.archive_of,
            spawn=self.spawn,
            fit=self.pictures.fit,
            keys=None if card.conditions.actions is None else card.conditions.actions.keys,
            state_log=self.keeper,
        )
        self.branches = Branches(service, self.live_sessions, self, max_live=self.limits.max_branches)
        self.restorer = SessionRestorer(
            service, self.live_sessions, self, self.archive_of, self.keeper, may_wait=not card.moves
        )  # a fleet has one line for all its servers
        self.outputs = Outputs(self.limits.destinations, self.spawn)
        self._ticker: asyncio.Task[None] | None = None
        self._over = False

    @property
    def archive(self) -> Archive:
        """Where things are kept. Raises where this server keeps nothing."""
        if self._archive is None:
            raise UnknownFile(KEEPS_NOTHING)
        return self._archive

    def archive_of(self, key: Key) -> Archive:
        """Where things are kept that belong to a key, and nobody else's."""
        return self.archive.with_store(self._stores[key.name]) if key.name else self.archive

    def start(self) -> None:
        start_threads(self.pool, self.limits.threads)
        self.reader.start()
        self.pictures.start()
        if self._archive is not None:
            self._archive.start()
        if self.keeper is not None:
            self.keeper.start(self.card.stream)
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="millstream-ticker")

    async def farewell(self) -> float:
        """End every session, and give those who watch the time to hear of it. Seconds that connections may
        then take."""
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
        self.reader.close()
        self.pictures.close()
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
        picture: Picture | None = None,
        key: Key = NAMELESS,
        session_id: str = "",
    ) -> OpenRequest:
        """A new session as it is asked for, of so many chunks where that is said. `source` names its input;
        empty: what its owner sends. It begins from `picture`, where there is one. Raises what is wrong with
        it."""
        check_prompts(prompts)
        config = key.paced(config, may_lower=rate == "auto")
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
            picture=picture,
        )

    def open(
        self,
        prompts: tuple[WeightedPrompt, ...],
        config: StreamConfig,
        *,
        client: str = "",
        key: Key = NAMELESS,
        **terms: Any,
    ) -> LiveSession:
        """A new session, on the terms of `request`. Raises `Overloaded` when it cannot be, and what is wrong
        with it."""
        request = self.request(prompts, config, key=key, **terms)
        journal = self.journal(request.session_id, request.config, key)
        return self.open_request(replace(request, journal=journal), client, key)

    async def open_asked(
        self,
        ask: Ask,
        *,
        client: str = "",
        key: Key = NAMELESS,
        session_id: str = "",
        max_chunks: int | None = None,
    ) -> LiveSession:
        """Open a session as a client asks for it."""
        terms = self.card.request_arguments(ask, key)
        fitted = await self.pictures.fit(ask.image, terms["config"], ask.fit) if ask.image else None
        live_session = self.open(
            **terms,
            max_chunks=max_chunks,
            picture=None if fitted is None else fitted.picture,
            client=client,
            key=key,
            session_id=session_id,
        )
        if fitted is not None and fitted.note:
            live_session.tell(Noted(words=about_picture(fitted.note), once=True))
        return live_session

    def request_asked(self, ask: Ask, key: Key = NAMELESS) -> OpenRequest:
        """Return a client's ask as the request that it is. Raises what is wrong with it."""
        return self.request(**self.card.request_arguments(ask, key), key=key)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Something to be done whether or not whoever asked for it is still there."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def end_with_connection(self, live_session: LiveSession) -> None:
        """End a session whose connection has closed, when its chunk is done."""
        if live_session.session_id in self.live_sessions:
            self._closing[live_session.session_id] = live_session.client
            live_session.end("its connection has closed")

    async def wait_closed(self, client: str) -> None:
        """Wait until the sessions that this client left are gone: a page that starts anew needs the place it
        had."""
        give_up = time.monotonic() + CLOSED_S
        while client in self._closing.values() and time.monotonic() < give_up:
            await asyncio.sleep(CLOSED_S / 100)

    def journal(self, session_id: str, config: StreamConfig, key: Key) -> SessionJournal | None:
        """None where nothing is kept."""
        return None if self._archive is None else self.archive_of(key).journal(session_id, config)

    def _made_keeper(self) -> Keeper | None:
        every = self.limits.keep_chunks
        return None if every is None else Keeper(self.archive_of, self.service, self.spawn, every=every)

    @property
    def bounds(self) -> dict[str, Any]:
        """Bounds of every session of this server."""
        limits = self.limits
        return dict(idle_s=limits.idle_s, max_life_s=limits.max_life_s, max_chunks=limits.max_chunks)

    async def _end(self) -> None:
        """End the service once: a model call that outlasts the time to stop is not waited for again."""
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

    def open_request(
        self,
        request: OpenRequest,
        client: str,
        key: Key,
        lineage: Lineage | None = None,
        back: Returned | None = None,
    ) -> LiveSession:
        """Open a session, also one that comes `back`. Raises `Overloaded` when it cannot be."""
        if request.session_id in self.live_sessions:  # a ticket names the session that it opens
            raise ProtocolError("bad_state", "this session is open already; attach to it")
        key.check_sessions(len(self.live_sessions.of_key(key)))
        own = sum(live_session.client == client for live_session in self.live_sessions.values())
        Quota(self.limits.max_sessions).check("sessions", own=own, all=len(self.live_sessions))
        kept = None if back is None else back.kept
        view_id = secrets.token_urlsafe(ID_BYTES) if kept is None else kept.view_id
        live_session = LiveSession(
            request,
            view_id,
            self._parts,
            client=client,
            key=key,
            lineage=lineage,
            other_views=() if kept is None else kept.other_views,
        )
        try:
            self.service.open(
                request, live_session.tell if self.keeper is None else self.keeper.track(live_session, back)
            )
        except MillstreamError:
            live_session.release_state()
            raise
        self.live_sessions.add(live_session)
        self.spawn(self._attend(live_session))
        if request.source:
            self.spawn(self.card.sources.feed(live_session, self.pool))
        return live_session

    async def _attend(self, live_session: LiveSession) -> None:
        try:
            await live_session.run()
        finally:
            self.live_sessions.remove(live_session)
            self._closing.pop(live_session.session_id, None)
            if self.keeper is not None:
                self.keeper.ended(live_session)
            self.outputs.forget(live_session)
            await live_session.recordings.stop()
            journal = live_session.request.journal
            if isinstance(journal, SessionJournal):
                await self.archive_of(live_session.key).keep_journal(journal, owner=live_session.client)
            live_session.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._report()
            limits = self.limits
            for each in list(self.live_sessions.values()):
                each.end_if_abandoned(
                    time.monotonic(), abandon_s=limits.abandon_s, leave_line_s=limits.leave_line_s
                )
            self.service.hand_over_takes(self._meter.read(time.thread_time()))

    def _report(self) -> None:
        """Send viewers how their sessions do."""
        metrics = self.service.metrics()
        for each in metrics.scheduler.sessions:
            live_session = self.live_sessions.get(each.session_id)
            if live_session is None:
                continue
            live_session.show_stats(
                Stats(
                    continuity=each.continuity,
                    ahead_s=each.ahead_s,
                    stalled_s=each.stalled_s,
                    misses=each.misses,
                    viewers=len(live_session.viewers),
                    utilisation=metrics.scheduler.utilisation,
                    shared=metrics.shared.get(each.session_id, 0),
                    paused=each.session_id in metrics.paused,
                    key_ms=live_session.key_ms,
                )
            )


def _read(read: Callable[[str], PromptReading], prompts: tuple[WeightedPrompt, ...]) -> PromptReading:
    """Return what the model makes of a mix."""
    return combined(read(prompt.text) for prompt in prompts)
