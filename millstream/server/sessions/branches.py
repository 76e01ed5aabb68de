"""Branches of live sessions: forked, rewound, and one of them kept. On the event loop; the work is the engine's thread's.

All branches of one session, and of those, are a tree. A branch has a place like any session, is refused like any, and may be
steered, recorded and saved like any. Bounded: `HubLimits.max_branches` of one tree live at a time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from millstream.core.config import StreamConfig
from millstream.core.controls import WeightedPrompt
from millstream.core.errors import Overloaded
from millstream.server.sessions.archive import SessionJournal
from millstream.server.sessions.engine_jobs import done_by_engine
from millstream.server.sessions.hub import ID_BYTES, SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.serving.notices import Noted
from millstream.session.forks import as_parent, restart_at
from millstream.session.journal import Journal
from millstream.session.journal_path import read_path
from millstream.session.session import Session
from millstream.session.trail import Restart

T = TypeVar("T")
OTHER_KEPT = "another branch of it was kept"


@dataclass(frozen=True, kw_only=True, slots=True)
class Went:
    """Where a branch begins, or a session that went back."""

    chunk: int
    """The first that can be other than it was."""
    from_chunk: int
    """The first that comes; before `chunk` they come as they were."""
    exact: bool

    @staticmethod
    def to(restart: Restart) -> Went:
        return Went(chunk=restart.timeline.chunk_index, from_chunk=restart.chunk_index, exact=restart.exact)

    @property
    def note(self) -> str:
        """What its people should know; empty if it is simply there."""
        if not self.exact:
            return (
                f"of chunk {self.chunk} only clean latents were kept: the window is rebuilt from them, so what follows is near "
                "what it would have been and not the same"
            )
        if self.from_chunk == self.chunk:
            return ""
        return f"it begins at chunk {self.from_chunk}, the last whole state, and is as it was until chunk {self.chunk}"

    def as_answer(self) -> dict[str, Any]:
        """As the answers of every protocol have it."""
        return dict(chunk=self.chunk, from_chunk=self.from_chunk, exact=self.exact, note=self.note)


async def fork(hub: SessionHub, parent: LiveSession, at_chunk: int | None = None) -> tuple[LiveSession, Went]:
    """A branch as it is now, or before an earlier chunk that is kept. Raises what stands against it."""
    if len(tree_of(hub, parent)) >= hub.limits.max_branches:
        raise Overloaded(f"{hub.limits.max_branches} branches of this session are live already; end one or keep one")
    restart: Restart = await _on_engine(hub, parent, lambda session: restart_at(session, at_chunk))
    timeline, began = restart.timeline, Future[Went]()
    config = timeline.over(parent.request.config)

    def make(session_id: str, journal: SessionJournal | None) -> Session:
        """On the engine's thread, once there is a place for it. The parent may have gone on since."""
        try:
            session = hub.service.session(parent.session_id)
            restart = restart_at(session, at_chunk)
            if journal is not None and isinstance(parent.request.journal, SessionJournal):
                journal.begin_after(as_parent(session, restart, parent.request.journal.place.name))
            branch = session.branch(restart, session_id=session_id, journal=journal)
        except BaseException as error:
            began.set_exception(error)
            raise
        began.set_result(Went.to(restart))
        return branch

    branch = _opened(hub, parent, timeline.prompts, config, make)
    went = await _wait(began)
    branch.forked_at = went.chunk
    if went.note:
        branch.tell(Noted(words=went.note, once=True))
    return branch, went


async def rewind(hub: SessionHub, live_session: LiveSession, chunk: int) -> Went:
    """Go back to before a chunk that is kept. What was shown from there on is not part of the session any more."""
    went = Went.to(await _wait(hub.service.rewind(live_session.session_id, chunk)))
    if went.note:
        live_session.tell(Noted(words=went.note, once=True))
    return went


def keep(hub: SessionHub, live_session: LiveSession) -> int:
    """End all other branches of its tree. How many those were."""
    others = [other for other in tree_of(hub, live_session) if other is not live_session]
    for other in others:
        hub.service.end(other.session_id, OTHER_KEPT)
    return len(others)


async def kept_chunks(hub: SessionHub, live_session: LiveSession) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Chunks that can be gone back to, and of these the ones with a whole state."""
    return await _on_engine(hub, live_session, lambda session: (session.trail.chunks, session.trail.states))


def tree_of(hub: SessionHub, live_session: LiveSession) -> list[LiveSession]:
    """The live branches, in the order they began."""
    return [other for other in hub.live_sessions.values() if other.tree == live_session.tree]


async def path_of(hub: SessionHub, live_session: LiveSession) -> Journal:
    """All that led to where a branch is, as one journal."""
    hub.archive.journal_path(live_session.request.journal)  # raises where there is none
    journals = [live.request.journal for live in hub.live_sessions.values() if isinstance(live.request.journal, SessionJournal)]
    growing = {journal.place: journal.path for journal in journals}
    (place,) = (journal.place for journal in journals if journal is live_session.request.journal)
    return await asyncio.to_thread(read_path, place, where=lambda path: growing.get(path, path))


def _opened(
    hub: SessionHub,
    parent: LiveSession,
    prompts: tuple[WeightedPrompt, ...],
    config: StreamConfig,
    make: Callable[[str, SessionJournal | None], Session],
) -> LiveSession:
    """A session on its parent's terms, which `make` makes on the engine's thread once there is a place for it."""
    session_id, key = secrets.token_urlsafe(ID_BYTES), parent.key
    journal = hub.journal(session_id, config, key)
    request = replace(
        parent.request,
        session_id=session_id,
        prompts=prompts,
        config=config,
        may_wait=False,
        tree=parent.tree,
        journal=journal,
        start=lambda: lambda engine: make(session_id, journal),
    )
    try:
        branch = hub.opened(request, parent.client, key)
    except Overloaded as error:
        raise Overloaded(f"no place for a branch: {error}") from None  # a rate or the line is offered to no branch
    branch.parent_id = parent.session_id
    return branch


async def _on_engine(hub: SessionHub, live_session: LiveSession, job: Callable[[Session], T]) -> T:
    found: T = await _wait(hub.service.on_engine(live_session.session_id, job))
    return found


async def _wait(job: Future[T]) -> T:
    return await done_by_engine(job, otherwise="try again later")
