"""Archive of what outlives a session: its journal, recordings and snapshots. Knows sessions and files, no
sockets.

Slow work (disks, mp4) happens on one thread of its own. A disk that fails ends a journal or a recording,
never a session: its clients are sent one line, and the disk's error is logged, for it names this machine's
folders.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from millstream.core.config import StreamConfig
from millstream.core.controls import Receipt
from millstream.core.envelope import Envelope
from millstream.core.errors import JournalError, NotKept, UnknownFile
from millstream.core.files import Draft, Staging, file_digest
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.engine.snapshot_parts import prepare
from millstream.server.sessions.engine_jobs import done_by_engine
from millstream.server.sessions.file_store import FileStore, Kept
from millstream.server.sessions.threads import start_threads
from millstream.serving.notices import Noted, Tell
from millstream.serving.service import Service
from millstream.serving.session_entry import label
from millstream.session.journal import Header, InputLatents, JournalWriter, ParentJournal, SavedStart
from millstream.session.kept import KeptAs
from millstream.session.ports import ChunkLog
from millstream.session.session import Session
from millstream.video.recording import Recording

T = TypeVar("T")
log = logging.getLogger(__name__)

NUM_READERS = 4
MAX_JOURNAL_BYTES = 2**29
"""Days of a stream from text, a kilobyte a chunk; most of an hour of Brook's with a camera."""
KEEPS_NOTHING = "this server keeps no recordings, journals or snapshots"
DISK_FAILS = "this server's disk is full or fails; the stream goes on"
"""As people are told."""


class Archive:
    def __init__(self, engine: Engine, store: FileStore) -> None:
        self.store = store
        self._engine = engine
        self._header = engine.journal_header(engine.spec.stream, "")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="millstream-archive")
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="millstream-restore")
        """For sessions that come back: neither one after another nor behind a recording."""

    def with_store(self, store: FileStore) -> Archive:
        """Return an archive in another folder: one engine and one thread for all of them."""
        archive = copy.copy(self)
        archive.store = store
        return archive

    def start(self) -> None:
        start_threads(self._pool, 1)
        start_threads(self._readers, NUM_READERS)

    def prepare(self, config: StreamConfig) -> None:
        """To take sessions over from other servers, whose people wait."""
        self._readers.submit(prepare, config, self._engine)

    def close(self, *, hurry: bool = False) -> None:
        """In a hurry only what is being written is written: the next server finds drafts and makes them
        whole."""
        self._pool.shutdown(cancel_futures=hurry)
        self._readers.shutdown(cancel_futures=hurry)

    def journal(self, session_id: str, config: StreamConfig) -> SessionJournal:
        name, path = self.store.new("journals")
        return SessionJournal(
            name, path, msgspec.structs.replace(self._header, config=config, session_id=session_id)
        )

    async def keep_journal(self, journal: SessionJournal, *, owner: str) -> None:
        """Its session has ended."""
        if await self._do(journal.finish):
            self.store.add("journals", journal.name, owner=owner)

    def record(self, fps: float, failed: Callable[[str], object]) -> tuple[str, Recording]:
        """`failed` is told its name when it can go on no longer."""
        name, path = self.store.new("recordings")
        return name, Recording(path, fps=fps, pool=self._pool, failed=lambda: failed(name))

    def copy(self, session: Session, kept: KeptAs | None = None) -> snapshot.Snapshot:
        """On the engine's thread."""
        return snapshot.capture(self._engine, session, self._header.fingerprint, kept)

    async def save(self, service: Service, session_id: str, *, owner: str) -> Kept:
        """A snapshot of a live session, taken between two of its chunks."""
        taken = await done_by_engine(
            service.on_engine(session_id, self.copy), otherwise="try to save it again later"
        )
        name, path = self.store.new("snapshots")
        with _told_plainly("the session could not be saved"):
            await self._do(lambda: snapshot.write(taken, path))
            await self._do(partial(self.store.share, "snapshots", name))
            return self.store.add("snapshots", name, owner=owner)

    async def find_saved(
        self, name: str, kind: Literal["snapshots", "sessions"] = "snapshots"
    ) -> SavedSession:
        """A snapshot that this engine can go on with. Raises what is wrong with it."""
        if await self._look_up(partial(self.store.fetch, kind, name)):
            self.store.add(kind, name)
        file = self.store.find(kind, name).path
        header = await self._look_up(partial(snapshot.check, file, self._engine, self._header.fingerprint))
        return SavedSession(header, file, self._read)

    async def pin(self, saved: SavedSession, *, owner: str) -> SavedSession:
        """Return a saved session under a name of its own, for a journal to begin with: the file it was kept
        as will be replaced."""
        name, path = self.store.new("snapshots")
        with _told_plainly("the session could not be brought back"):
            await self._look_up(partial(_link_or_copy, saved.path, path))
            self.store.add("snapshots", name, owner=owner)
        return replace(saved, path=path)

    def _read(self, path: Path) -> snapshot.Snapshot:
        return snapshot.read(path, self._engine, self._header.fingerprint)

    async def import_snapshot(self, pieces: AsyncIterator[bytes], *, owner: str) -> Kept:
        """Keep a snapshot from elsewhere, if this engine can go on with it."""
        name, path = self.store.new("snapshots")
        with _told_plainly("the snapshot could not be taken in"):
            draft = Draft(path.parent)
            try:
                place = draft.path / path.name
                with place.open("xb") as file:
                    async for piece in pieces:
                        await self._do(partial(file.write, piece))
                await self._do(lambda: snapshot.check(place, self._engine, self._header.fingerprint))
                await self._do(lambda: draft.publish(path.name, path))
            finally:
                draft.remove()
            return self.store.add("snapshots", name, owner=owner)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _look_up(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a disk that knows no links
        with Staging(target.parent) as staging:
            shutil.copyfile(source, staging.path(target.name))


@contextmanager
def _told_plainly(what: str) -> Iterator[None]:
    """Whoever asked hears that it was not kept; what the disk said is for the log."""
    try:
        yield
    except (OSError, NotKept) as error:
        log.error("%s: %s", what, error)
        raise NotKept(f"{what}: {DISK_FAILS}") from None


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A snapshot as it lies on the disk; nothing of it is in memory yet."""

    header: snapshot.SnapshotHeader
    path: Path
    _read: Callable[[Path], snapshot.Snapshot]

    def read(self, journal: SessionJournal | None) -> snapshot.Snapshot:
        """All of it, which the journal then begins with. Slow: for a thread of its own."""
        if journal is not None:
            journal.begin_with(self.path)
        return self._read(self.path)


def begun_journal(journal: ChunkLog | None) -> SessionJournal:
    """Return the journal of a live session. Raises where nothing was written yet."""
    if journal is None:
        raise UnknownFile(KEEPS_NOTHING)
    if not isinstance(journal, SessionJournal) or not journal.path.is_file():
        raise UnknownFile("this session has no journal: it has not begun")
    return journal


class SessionJournal:
    """A journal that never fails its session: it stops at the first error, and at `MAX_JOURNAL_BYTES`.

    It grows in a draft from the first chunk on and gets its name when the session has ended. Written on the
    engine's thread.
    """

    def __init__(self, name: str, path: Path, header: Header) -> None:
        self.name = name
        self.tell: Tell = lambda notice: None
        """Whom to tell that it cannot go on."""
        self._path = path
        self._header = header
        self._draft: Draft | None = None
        self._writer: JournalWriter | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def place(self) -> Path:
        """Where it will be when its session has ended."""
        return self._path

    @property
    def path(self) -> Path:
        """Where it is now."""
        return self._path if self._draft is None else self._draft.path / self._path.name

    def write(
        self, envelope: Envelope, digest: str, receipts: tuple[Receipt, ...], given: InputLatents | None
    ) -> None:
        self._append(lambda writer: writer.write(envelope, digest, receipts, given), envelope.chunk_index)

    def rewind(self, chunk_index: int) -> None:
        self._append(lambda writer: writer.rewind(chunk_index), chunk_index)

    def _append(self, write: Callable[[JournalWriter], None], chunk_index: int) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                writer = self._begun()
                if writer.num_bytes >= MAX_JOURNAL_BYTES:
                    self._end_before(
                        chunk_index, f"it has {MAX_JOURNAL_BYTES / 2**20:.0f} MiB; the stream goes on"
                    )
                else:
                    write(writer)
            except (OSError, JournalError) as error:
                about = {"session": label(self._header.session_id), "chunk": chunk_index}
                log.warning("its journal ends early: %s", error, extra=about)
                self._end_before(chunk_index, DISK_FAILS)

    def begin_with(self, saved: Path) -> None:
        """Its session goes on from a snapshot that lies in the same store. Before the first chunk."""
        assert self._writer is None, "what it begins with is in its first line"
        place = os.path.relpath(saved, self._path.parent)
        self._header = msgspec.structs.replace(
            self._header, start=SavedStart(path=place, digest=file_digest(saved))
        )

    def begin_after(self, parent: ParentJournal) -> None:
        """Its session is a branch of another, whose journal lies in the same folder. Before the first
        chunk."""
        assert self._writer is None, "where it began is in its first line"
        self._header = msgspec.structs.replace(self._header, parent=parent)

    def finish(self) -> bool:
        """The session has ended: what was written gets its name. Whether there is anything."""
        with self._lock:
            self._close()
            if self._draft is None:
                return False
            draft = self._draft
            self._draft = None
            try:
                draft.publish(self._path.name, self._path)
            except OSError as error:
                log.warning(
                    "its journal is lost: %s", error, extra={"session": label(self._header.session_id)}
                )
            draft.remove()
            return self._path.is_file()

    def _begun(self) -> JournalWriter:
        if self._writer is None:
            self._draft = Draft(self._path.parent)
            self._writer = JournalWriter(self.path, self._header)
        return self._writer

    def _end_before(self, chunk_index: int, why: str) -> None:
        self._close()
        self.tell(Noted(words=f"its journal ends before chunk {chunk_index}: {why}"))

    def _close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()
