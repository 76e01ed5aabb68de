"""Sessions that outlive the server: the state of each in one file, replaced whole every few chunks and when the server stops.

The state is copied on the engine's thread between two chunks and written on a thread of its own, so that a slow disk holds
nobody up: a session whose last copy is still being written is copied at a later chunk, so there is never more than one of each.
The file's name is a digest of the session's id, which therefore cannot be learnt from a listing. A session that ends because
somebody wanted it to leaves nothing; what a killed server left is found by the next one, for a day (`file_store.py` beside it).
A disk that is full ends no stream: the session's people are told once.

Where servers share files, every control is logged there before it is acknowledged: a session that comes back from its last
state takes up those that came later, each at its chunk, and so goes on to the same bits.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

from millstream.core.config import StreamConfig
from millstream.core.controls import AnyControl, Receipt
from millstream.core.errors import NotKept, Overloaded, UnknownFile, UnknownSession
from millstream.engine import snapshot
from millstream.server.access.keys import NAMELESS, Key
from millstream.server.sessions.archive import DISK_FAILS, Archive, SavedSession
from millstream.server.sessions.file_store import FileStore
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.receipts import MAX_RECEIPTS
from millstream.server.sessions.threads import start_threads
from millstream.serving.notices import SHUTTING_DOWN, Applied, Ended, Live, Noted, Notice, Pictured, Tell
from millstream.serving.service import Service
from millstream.serving.session_entry import label
from millstream.session.kept import KeptAs, LoggedControl, welcome
from millstream.session.session import Session
from millstream.session.timeline import TimelineState

log = logging.getLogger(__name__)

STORAGE_FAILS = (
    "the storage that servers share is full or gone; the stream goes on. If its server dies meanwhile, it comes back as it "
    "was kept last, without what was asked for since"
)
Spawn = Callable[[Coroutine[Any, Any, None]], object]


@dataclass(frozen=True, slots=True)
class Returned:
    """A session that somebody has come back to."""

    saved: SavedSession
    kept: KeptAs
    log: dict[str, LoggedControl] | None = None
    """Controls that were acknowledged, by file; None where they are not logged."""

    @property
    def timeline(self) -> TimelineState:
        return self.saved.header.timeline

    @property
    def late(self) -> tuple[LoggedControl, ...]:
        """Controls that its state knows nothing of."""
        return self.kept.unknown((self.log or {}).values(), self.timeline)

    @property
    def news(self) -> list[Notice]:
        """What its people are told first."""
        receipts = self.kept.receipts(self.timeline, self.late)
        said = Noted(words=welcome(self.timeline, has_log=self.log is not None), once=True)
        return [said, Applied(receipts=receipts)]


@dataclass(slots=True, eq=False)
class _Held:
    """A session that is being kept."""

    live_session: LiveSession
    applied: deque[Receipt]
    """Of its last controls."""
    due: int
    """At this chunk it is copied again."""
    is_copied: bool = False
    """Whether a copy is being made or written."""
    num_copies: int = 0
    """That were ever made."""
    has_file: bool = False
    is_over: bool = False
    """Whether it has ended for good: what is still written of it goes."""
    was_told: bool = False
    media_s: float = 0.0
    """Of all its chunks."""
    last: int = -1
    """The chunk that was made last: after a rewind, what was kept is of a path that was not taken."""
    num_logged: int = 0
    """Controls, ever."""

    @property
    def session_id(self) -> str:
        return self.live_session.session_id

    @property
    def file(self) -> str:
        return file_name(self.session_id)


class _Copy(NamedTuple):
    number: int
    """Of its session's."""
    snapshot: snapshot.Snapshot


class Keeper:
    def __init__(self, archive_of: Callable[[Key], Archive], service: Service, spawn: Spawn, *, every: int) -> None:
        """Make it on the event loop. `spawn` runs something there to its end; `every` is in chunks. What is kept of a session
        lies with the other files of its key, so that no other key comes back to it."""
        self._archive_of, self._service, self._spawn, self._every = archive_of, service, spawn, every
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, _Held] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="millstream-keep")
        self._log_pool = ThreadPoolExecutor(1, thread_name_prefix="millstream-controls")
        """Of its own: nobody waits for an acknowledgement behind somebody's state."""

    def start(self, stream: StreamConfig) -> None:
        """`stream` is what most sessions are."""
        start_threads(self._pool, 1)
        archive = self._archive_of(NAMELESS)
        if archive.store.shared is not None:
            start_threads(self._log_pool, 1)
            archive.prepare(stream)

    def close(self, *, hurry: bool = False) -> None:
        """In a hurry only what is being written is written: the file before it is whole."""
        self._pool.shutdown(cancel_futures=hurry)
        self._log_pool.shutdown(cancel_futures=hurry)

    async def find(self, session_id: str, key: Key) -> Returned:
        """One that was kept and is not live. Raises what is wrong with it."""
        try:
            saved = await self._archive_of(key).find_saved(file_name(session_id), "sessions")
        except UnknownFile:
            raise UnknownSession("there is no such session; it may have ended") from None
        kept = saved.header.kept
        if kept is None or kept.session_id != session_id:
            raise UnknownSession("there is no such session; what lies in its place is another's")
        shared = self._archive_of(key).store.shared
        if shared is None:
            return Returned(saved, kept)
        lines = await self._loop.run_in_executor(self._log_pool, shared.read_all, _log_folder(file_name(session_id)))
        return Returned(saved, kept, {name: msgspec.json.decode(line, type=LoggedControl) for name, line in lines.items()})

    async def log(self, live_session: LiveSession, control: AnyControl, receipt: Receipt) -> None:
        """Before the receipt goes out."""
        held = self._held.get(live_session.session_id)
        shared = None if held is None else self._store(held).shared
        if held is None or shared is None:
            return
        held.num_logged += 1
        named = msgspec.structs.replace(control, id=receipt.control_id)
        line = msgspec.json.encode(LoggedControl(control=named, at_chunk=receipt.chunk_index))
        place = f"{_log_folder(held.file)}/{receipt.chunk_index:012d}-{held.num_logged:09d}.json"
        try:
            await self._loop.run_in_executor(self._log_pool, shared.write, place, line)
        except NotKept as error:
            level = logging.DEBUG if held.was_told else logging.ERROR
            log.log(level, "its controls are not kept: %s", error, extra={"session": label(held.session_id)})
            self._tell_once(held, STORAGE_FAILS)

    async def hand_over(self, live_session: LiveSession) -> None:
        """Its state as it is, where another server finds it. The session stands still and nobody steers it."""
        held = self._held[live_session.session_id]
        await self._put_away(held, self._copied(held), must=True)

    def follow(self, live_session: LiveSession, back: Returned | None = None) -> Tell:
        """Keep a session from now on, `back` from what was kept or new; what its people are to be told goes through here."""
        assert live_session.session_id not in self._held, "a session is followed once"
        held = _Held(live_session, deque(maxlen=MAX_RECEIPTS), due=1)
        news = list[Notice]()
        if back is not None:
            held.applied.extend(back.kept.applied)
            held.due = back.timeline.chunk_index + self._every
            held.has_file, held.media_s = True, back.kept.media_s
            held.num_logged = max((int(name.partition("-")[2].partition(".")[0]) for name in back.log or ()), default=0)
            news = back.news
        self._held[live_session.session_id] = held

        def tell(notice: Notice) -> None:
            """On the engine's thread."""
            live_session.tell(notice)
            match notice:
                case Pictured(chunk=chunk, media_s=media_s, fps=fps):
                    held.applied.extend(chunk.receipts)
                    held.media_s = media_s + len(chunk.frames) / fps
                    went_back, held.last = chunk.index <= held.last, chunk.index
                    if (chunk.index + 1 >= held.due or went_back) and not held.is_copied:
                        self._copy_soon(held, chunk.index + 1)
                case Applied(receipts=receipts):
                    held.applied.extend(receipts)
                case Live():
                    while news:
                        live_session.tell(news.pop(0))

        return tell

    def let_be(self, session_id: str) -> None:
        """Its session may end without its file."""
        self._held.pop(session_id, None)

    def ended(self, live_session: LiveSession) -> None:
        """What is kept of a session goes with it, unless it may be brought back."""
        held = self._held.pop(live_session.session_id, None)
        if held is None or not isinstance(live_session.state, Ended):
            return
        if live_session.state.cause not in ("failed", "refused") and live_session.state != SHUTTING_DOWN:
            held.is_over = True
            self._remove(held)

    async def keep_all(self, timeout_s: float) -> None:
        """The server stops: every session ends here, in the state that is kept."""
        with suppress(Overloaded):  # the engine has failed: what was kept before is all there is
            jobs = [(held, self._copied(held, last=True)) for held in self._held.values()]
            writing = [asyncio.ensure_future(self._put_away(held, job)) for held, job in jobs]
            if writing:
                await asyncio.wait(writing, timeout=timeout_s)

    def _copy_soon(self, held: _Held, chunk: int) -> None:
        """On the engine's thread, which does it before anything else."""
        held.due, held.is_copied = chunk + self._every, True
        with suppress(Overloaded):  # it is all over: whoever stops the server keeps everybody
            job = self._copied(held)
            self._loop.call_soon_threadsafe(lambda: self._spawn(self._put_away(held, job)))

    def _copied(self, held: _Held, *, last: bool = False) -> Future[_Copy]:
        request, view_id = held.live_session.request, held.live_session.view_id

        def copy(session: Session) -> _Copy:
            held.num_copies += 1
            if last:
                self._service.end(held.session_id, SHUTTING_DOWN.reason)  # first: from now on nobody can steer it
            kept = KeptAs(
                session_id=held.session_id,
                view_id=view_id,
                rate=request.rate,
                weight=request.weight,
                lead_s=request.lead_s,
                unattended=request.unattended,
                applied=tuple(held.applied),
                media_s=held.media_s,
                source=request.source,
                tree=held.live_session.tree,
                parent_id=held.live_session.parent_id,
                forked_at=held.live_session.forked_at,
            )
            return _Copy(held.num_copies, self._archive_of(held.live_session.key).copy(session, kept))

        return self._service.on_engine(held.session_id, copy)

    async def _put_away(self, held: _Held, job: Future[_Copy], *, must: bool = False) -> None:
        """`must`: raise what goes wrong, for whoever needs it there."""
        try:
            copied = await asyncio.wrap_future(job)
            assert 0 < copied.number <= held.num_copies, f"copy {copied.number} of {held.num_copies}"
            if (
                copied.number < held.num_copies and not must
            ):  # the last one was made meanwhile, and may come to the disk before this
                return
            await self._loop.run_in_executor(self._pool, partial(self._write, held, copied.snapshot))
        except UnknownSession:  # it ended first, or is still in line
            if must:
                raise
            return
        except NotKept as error:
            level = logging.DEBUG if held.was_told else logging.ERROR  # a full disk is not filled with this
            log.log(level, "its state is not kept: %s", error, extra={"session": label(held.session_id)})
            self._tell_once(held, DISK_FAILS if self._store(held).shared is None else STORAGE_FAILS)
            if must:
                raise
            return
        finally:
            held.is_copied = False
        if held.is_over:
            self._remove(held)
            return
        self._store(held).keep("sessions", held.file, owner=held.live_session.client)
        held.has_file = True
        self._tell_those_without()

    def _write(self, held: _Held, copied: snapshot.Snapshot) -> None:
        """On the keeper's thread. What the state holds need not be logged any more."""
        store = self._store(held)
        snapshot.write(copied, store.place("sessions", held.file))
        store.share("sessions", held.file)
        if store.shared is not None:
            folder, chunk = _log_folder(held.file), copied.header.timeline.chunk_index
            for name in store.shared.names(folder):
                if int(name.partition("-")[0]) < chunk:
                    store.shared.remove(f"{folder}/{name}")

    def _remove(self, held: _Held) -> None:
        """For good, wherever it lies."""
        store = self._store(held)
        store.remove("sessions", held.file)
        if store.shared is not None:
            place = store.place("sessions", held.file)
            self._pool.submit(store.shared.remove, f"sessions/{place.name}")
            self._pool.submit(store.shared.remove, _log_folder(held.file))

    def _tell_those_without(self) -> None:
        """Files of others may have gone for the newest."""
        for held in self._held.values():
            if held.has_file and self._store(held).get("sessions", held.file) is None:
                held.has_file = False
                self._tell_once(held, "there is no room for it beside others'; the stream goes on")

    def _store(self, held: _Held) -> FileStore:
        return self._archive_of(held.live_session.key).store

    def _tell_once(self, held: _Held, why: str) -> None:
        if not held.was_told:
            held.was_told = True
            held.live_session.tell(Noted(words=f"the session's state is not kept for a restart: {why}"))


def _log_folder(file: str) -> str:
    return f"controls/{file}"


def file_name(session_id: str) -> str:
    """As the store names its files."""
    digest = hashlib.blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
