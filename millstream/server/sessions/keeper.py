"""Sessions that outlive the server: the state of each in one file, replaced whole every few chunks and when
the server stops.

The state is copied on the engine's thread between two chunks and written on a thread of its own, so that a
slow disk holds nobody up: a session whose last copy is still being written is copied at a later chunk, so
there is never more than one of each. The file's name is a digest of the session's id, which therefore cannot
be learnt from a listing. A session that ends because somebody wanted it to leaves nothing; what a killed
server left is found by the next one, for a day (`file_store.py` beside it). A disk that is full ends no
stream: the session's people are told once.

Beside it lies a log: every control before it is acknowledged, and the index of every chunk before it is
shown. A session that comes back from its last state takes up the controls that came later, each at its chunk,
and makes the chunks that were shown since to the same bits; what is asked of it meanwhile applies after them.
So nothing that its people were told or shown becomes untrue when their server dies.
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
from millstream.core.errors import NotKept, Overloaded, SnapshotError, UnknownFile, UnknownSession
from millstream.core.keys import NAMELESS, Key
from millstream.engine import snapshot
from millstream.server.sessions.archive import DISK_FAILS, Archive, SavedSession
from millstream.server.sessions.file_store import FileStore
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.receipts import MAX_RECEIPTS
from millstream.server.sessions.threads import start_threads
from millstream.serving.notices import SHUTTING_DOWN, Applied, Ended, Live, Noted, Notice, Tell
from millstream.serving.service import Service
from millstream.serving.session_entry import label
from millstream.session.chunk import Chunk
from millstream.session.kept import KeptAs, LastShown, LoggedControl
from millstream.session.session import Session
from millstream.session.timeline import TimelineState

log = logging.getLogger(__name__)

STORAGE_FAILS = (
    "the storage that servers share is full or gone; the stream goes on. If its server dies meanwhile, it "
    "comes back as it "
    "was kept last, without what was asked for since"
)
SLOW_LOG_S = 2.0
"""For so long a chunk waits until storage knows that it is shown."""
LOG_THREADS = 8
"""Storage that is far away takes its time for each session."""
SHOWN = "shown.json"
"""In a session's log, beside its controls."""
Spawn = Callable[[Coroutine[Any, Any, None]], object]


@dataclass(frozen=True, slots=True)
class Returned:
    """A session that somebody has come back to."""

    saved: SavedSession
    kept: KeptAs
    log: dict[str, LoggedControl]
    """Controls that were acknowledged, by file."""
    shown: LastShown

    @property
    def timeline(self) -> TimelineState:
        return self.saved.header.timeline

    @property
    def late(self) -> tuple[LoggedControl, ...]:
        """Controls that its state knows nothing of."""
        return self.kept.unknown(self.log.values(), self.timeline)

    @property
    def open_from(self) -> int:
        """The first chunk that may be other than it was."""
        return self.shown.open_from(self.kept, self.timeline)

    @property
    def news(self) -> list[Notice]:
        """Notices that its clients are sent first."""
        receipts = self.kept.receipts(self.timeline, self.late)
        said = Noted(words=self.shown.welcome(self.kept, self.timeline), once=True)
        return [said, Applied(receipts=receipts)]


@dataclass(slots=True, eq=False)
class _Held:
    """Session that is being kept."""

    live_session: LiveSession
    applied: deque[Receipt]
    """Receipts of its last controls."""
    due: int
    """Chunk at which it is copied again."""
    is_copied: bool = False
    """True while a copy is being made or written."""
    num_copies: int = 0
    """Number of copies ever made."""
    has_file: bool = False
    is_over: bool = False
    """True if it has ended for good: what is still written of it is removed."""
    was_told: bool = False
    media_s: float = 0.0
    """Seconds of all its chunks."""
    last: int = -1
    """Last chunk made: after a rewind, what was kept is of a path that was not taken."""
    num_logged: int = 0
    """Number of controls ever logged."""
    path: int = 0
    """How often it was rewound."""

    @property
    def session_id(self) -> str:
        return self.live_session.session_id

    @property
    def file(self) -> str:
        return file_name(self.session_id)


class _Copy(NamedTuple):
    number: int
    """Number of the copy among its session's, from 1."""
    snapshot: snapshot.Snapshot


class Keeper:
    def __init__(
        self, archive_of: Callable[[Key], Archive], service: Service, spawn: Spawn, *, every: int
    ) -> None:
        """Make it on the event loop. `spawn` runs something there to its end; `every` is in chunks. What is
        kept of a session lies with the other files of its key, so that no other key comes back to it."""
        self._archive_of = archive_of
        self._service = service
        self._spawn = spawn
        self._every = every
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, _Held] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="millstream-keep")
        self._log_pool = ThreadPoolExecutor(LOG_THREADS, thread_name_prefix="millstream-controls")
        """Pool for controls alone: an acknowledgement never waits behind another session's state."""

    def start(self, stream: StreamConfig) -> None:
        """`stream` is what most sessions are."""
        start_threads(self._pool, 1)
        start_threads(self._log_pool, LOG_THREADS)
        archive = self._archive_of(NAMELESS)
        if archive.store.shared is not None:
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
        logs = self._archive_of(key).store.logs
        lines = await self._loop.run_in_executor(
            self._log_pool, logs.read_all, _log_folder(file_name(session_id))
        )
        shown = msgspec.json.decode(lines.pop(SHOWN, b"{}"), type=LastShown)
        return Returned(
            saved,
            kept,
            {name: msgspec.json.decode(line, type=LoggedControl) for name, line in lines.items()},
            shown,
        )

    async def log_control(self, session_id: str, control: AnyControl, receipt: Receipt) -> None:
        """Keep a control, before its receipt goes out."""
        held = self._held.get(session_id)
        if held is None:
            return
        held.num_logged += 1
        named = msgspec.structs.replace(control, id=receipt.control_id)
        line = msgspec.json.encode(LoggedControl(control=named, at_chunk=receipt.chunk_index, path=held.path))
        await self._write_log(held, f"{receipt.chunk_index:012d}-{held.num_logged:09d}.json", line)

    async def log_shown(self, session_id: str, chunk: int) -> None:
        """Keep the index of a chunk, before it is shown."""
        held = self._held.get(session_id)
        if held is None:
            return
        line = msgspec.json.encode(LastShown(chunk=chunk, path=held.path))
        writing = asyncio.ensure_future(self._write_log(held, SHOWN, line))
        if not (await asyncio.wait({writing}, timeout=SLOW_LOG_S))[0]:
            self._failed(held, "its chunks are shown before storage knows of them", "storage is slow")

    async def _write_log(self, held: _Held, name: str, line: bytes) -> None:
        place = f"{_log_folder(held.file)}/{name}"
        try:
            await self._loop.run_in_executor(self._log_pool, self._store(held).logs.write, place, line)
        except NotKept as error:
            self._failed(held, "its controls are not kept", error)
        except RuntimeError as error:  # the server stops, and its threads have
            log.debug("its log is not written: %s", error, extra={"session": label(held.session_id)})

    def _failed(self, held: _Held, what: str, why: object) -> None:
        """Something is not kept: its people are told, once, and the stream goes on."""
        level = logging.DEBUG if held.was_told else logging.ERROR  # a full disk is not filled with this
        log.log(level, "%s: %s", what, why, extra={"session": label(held.session_id)})
        self._tell_once(held, DISK_FAILS if self._store(held).shared is None else STORAGE_FAILS)

    async def write_state(self, session_id: str) -> None:
        """Leave its state where another server finds it. The session stands still and nobody steers it."""
        held = self._held[session_id]
        await self._put_away(held, self._copied(held), must=True)

    def track(self, live_session: LiveSession, back: Returned | None = None) -> Tell:
        """Keep a session from now on, `back` from what was kept or new; what its people are to be told goes
        through here."""
        assert live_session.session_id not in self._held, "a session is tracked once"
        held = _Held(live_session, deque(maxlen=MAX_RECEIPTS), due=1)
        news = list[Notice]()
        if back is not None:
            held.applied.extend(back.kept.applied)
            # what a stopped server kept is all there was for as long as nothing was added to it: then it is
            # replaced at once
            held.due = back.timeline.chunk_index + (1 if back.kept.was_stopped else self._every)
            held.due = max(held.due, back.open_from + 1)
            held.has_file = True
            held.media_s = back.kept.media_s
            held.path = back.kept.path
            held.num_logged = max(
                (int(name.partition("-")[2].partition(".")[0]) for name in back.log), default=0
            )
            news = back.news
        self._held[live_session.session_id] = held

        def tell(notice: Notice) -> None:
            """On the engine's thread."""
            live_session.tell(notice)
            match notice:
                case Chunk() as chunk:
                    went_back = chunk.index <= held.last
                    held.last = chunk.index
                    if went_back:  # what applied from here on did so on a path that was left
                        held.path += 1
                        held.applied = deque(
                            (each for each in held.applied if each.chunk_index < chunk.index), MAX_RECEIPTS
                        )
                    held.applied.extend(chunk.receipts)
                    held.media_s = chunk.media_s + chunk.num_frames / chunk.fps
                    if (chunk.index + 1 >= held.due or went_back) and not held.is_copied:
                        self._copy_soon(held, chunk.index + 1)
                case Applied(receipts=receipts):
                    held.applied.extend(receipts)
                case Live():
                    while news:
                        live_session.tell(news.pop(0))

        return tell

    def release(self, session_id: str) -> None:
        """Keep no more of a session, and leave what was kept when it ends."""
        self._held.pop(session_id, None)

    def ended(self, live_session: LiveSession) -> None:
        """Remove what is kept of a session that has ended, unless it may be brought back."""
        held = self._held.pop(live_session.session_id, None)
        if held is None or not isinstance(live_session.status, Ended):
            return
        if live_session.status.cause not in ("failed", "refused") and live_session.status != SHUTTING_DOWN:
            held.is_over = True
            self._remove(held)

    async def keep_all(self, timeout_s: float) -> None:
        """Keep every session as the server stops: each ends here, in the state that is kept."""
        with suppress(Overloaded):  # the engine has failed: what was kept before is all there is
            jobs = [(held, self._copied(held, last=True)) for held in self._held.values()]
            writing = [asyncio.ensure_future(self._put_away(held, job)) for held, job in jobs]
            if writing:
                await asyncio.wait(writing, timeout=timeout_s)

    def _copy_soon(self, held: _Held, chunk: int) -> None:
        """Copy a session on the engine's thread, which does it before anything else."""
        held.due = chunk + self._every
        held.is_copied = True
        with suppress(Overloaded):  # it is all over: whoever stops the server keeps everybody
            job = self._copied(held)
            self._loop.call_soon_threadsafe(lambda: self._spawn(self._put_away(held, job)))

    def _copied(self, held: _Held, *, last: bool = False) -> Future[_Copy]:
        request = held.live_session.request
        view_id = held.live_session.view_id

        def copy(session: Session) -> _Copy:
            held.num_copies += 1
            if last:
                self._service.end(
                    held.session_id, SHUTTING_DOWN.reason
                )  # first: from now on nobody can steer it
            lineage = held.live_session.lineage
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
                tree=lineage.tree,
                parent_id=lineage.parent_id,
                forked_at=lineage.forked_at,
                other_views=held.live_session.other_views,
                was_stopped=last,
                path=held.path,
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
        except SnapshotError:  # it went back, and is on its way to where it was
            held.due = 0
            if must:
                raise
            return
        except NotKept as error:
            self._failed(held, "its state is not kept", error)
            if must:
                raise
            return
        finally:
            held.is_copied = False
        if held.is_over:
            self._remove(held)
            return
        self._store(held).add("sessions", held.file, owner=held.live_session.client)
        held.has_file = True
        self._tell_those_without()

    def _write(self, held: _Held, copied: snapshot.Snapshot) -> None:
        """On the keeper's thread. What the state holds need not be logged any more."""
        store = self._store(held)
        snapshot.write(copied, store.place("sessions", held.file))
        store.share("sessions", held.file)
        folder = _log_folder(held.file)
        chunk = copied.header.timeline.chunk_index
        for name in store.logs.names(folder):
            if name[0].isdigit() and int(name.partition("-")[0]) < chunk:
                store.logs.remove(f"{folder}/{name}")

    def _remove(self, held: _Held) -> None:
        """For good, wherever it lies."""
        store = self._store(held)
        store.remove("sessions", held.file)
        if store.shared is not None:
            place = store.place("sessions", held.file)
            self._pool.submit(store.shared.remove, f"sessions/{place.name}")
        self._pool.submit(store.logs.remove, _log_folder(held.file))

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
