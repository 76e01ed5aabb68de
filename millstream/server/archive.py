"""What outlives a session: its journal, its recordings, its snapshots. Knows sessions and the shelf, no sockets.

Slow work (disks, mp4) happens on one thread of its own. A disk that fails ends a journal or a recording, never a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from millstream.core.config import StreamConfig
from millstream.core.controls import Receipt
from millstream.core.envelope import Envelope
from millstream.core.errors import JournalError, UnknownFile
from millstream.runtime import snapshot
from millstream.runtime.engine import Engine
from millstream.runtime.journal import Header, JournalWriter
from millstream.runtime.ports import ChunkLog
from millstream.runtime.seats import label
from millstream.runtime.service import Service
from millstream.server.recording import Recording
from millstream.server.shelf import Kept, Shelf
from millstream.server.threads import start_threads

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_JOURNAL_CHUNKS = 100_000
"""About a kilobyte each, and most of a day."""
ENGINE_S = 60.0
"""How long the engine's thread may take to come to a job between two chunks."""


class Archive:
    def __init__(self, engine: Engine, shelf: Shelf) -> None:
        self.shelf = shelf
        self._engine = engine
        self._header = engine.journal_header(engine.spec.stream, "")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="millstream-archive")

    def start(self) -> None:
        start_threads(self._pool, 1)

    def close(self) -> None:
        self._pool.shutdown()

    def journal(self, session_id: str, config: StreamConfig) -> SessionJournal:
        name, path = self.shelf.new("journals")
        return SessionJournal(name, path, msgspec.structs.replace(self._header, config=config, session_id=session_id))

    def keep_journal(self, journal: SessionJournal, *, owner: str) -> None:
        """Its session has ended."""
        journal.close()
        if journal.path.is_file():
            self.shelf.keep("journals", journal.name, owner=owner)

    def journal_path(self, journal: ChunkLog | None) -> Path:
        """Of a session that is live."""
        if not isinstance(journal, SessionJournal) or not journal.path.is_file():
            raise UnknownFile("this session has no journal: it was restored, takes frames, or has not begun")
        return journal.path

    def record(self, fps: float) -> tuple[str, Recording]:
        name, path = self.shelf.new("recordings")
        return name, Recording(path, fps=fps, pool=self._pool)

    async def save(self, service: Service, session_id: str, *, owner: str) -> Kept:
        """A snapshot of a live session, taken between two of its chunks."""
        fingerprint = self._header.fingerprint
        job = service.on_engine(session_id, lambda session: snapshot.take(self._engine, session, fingerprint))
        taken = await asyncio.wait_for(asyncio.wrap_future(job), ENGINE_S)
        name, path = self.shelf.new("snapshots")
        await self._do(lambda: snapshot.write(taken, path))
        return self.shelf.keep("snapshots", name, owner=owner)

    async def find_saved(self, name: str) -> Saved:
        """A snapshot that this engine can go on with. Raises what is wrong with it."""
        file = (self.shelf.find("snapshots", name).path, self._engine, self._header.fingerprint)
        return Saved(await self._do(partial(snapshot.check, *file)), partial(snapshot.read, *file))

    async def take_in(self, pieces: AsyncIterator[bytes], *, owner: str) -> Kept:
        """A snapshot from elsewhere: kept if this engine can go on with it."""
        name, path = self.shelf.new("snapshots")
        try:
            with path.open("xb") as file:
                async for piece in pieces:
                    await self._do(partial(file.write, piece))
            await self._do(lambda: snapshot.check(path, self._engine, self._header.fingerprint))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return self.shelf.keep("snapshots", name, owner=owner)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot as it lies on the disk; nothing of it is in memory yet."""

    header: snapshot.SnapshotHeader
    read: Callable[[], snapshot.Snapshot]


class SessionJournal:
    """A journal that never fails its session: it stops at the first error, and after `MAX_JOURNAL_CHUNKS`.

    The file appears with the first chunk.
    """

    def __init__(self, name: str, path: Path, header: Header) -> None:
        self.name = name
        self.path = path
        self._header = header
        self._chunks = 0
        self._writer: JournalWriter | None = None
        self._closed = False

    def write(self, envelope: Envelope, digest: str, receipts: tuple[Receipt, ...]) -> None:
        if self._closed or self._chunks >= MAX_JOURNAL_CHUNKS:
            return
        self._chunks += 1
        try:
            if self._writer is None:
                self._writer = JournalWriter(self.path, self._header)
            self._writer.write(envelope, digest, receipts)
        except JournalError as error:
            about = {"session": label(self._header.session_id), "chunk": envelope.chunk_index}
            log.warning("its journal ends early: %s", error, extra=about)
            self.close()

    def close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()
