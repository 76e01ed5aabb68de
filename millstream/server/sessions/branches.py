"""Branches of live sessions: forked, rewound, and one of them kept. On the event loop; the work is the
engine's thread's.

All branches of one session, and of those, are a tree. A branch has a place like any session, is refused like
any, and may be steered, recorded and saved like any. Bounded: `HubLimits.max_branches` sessions of one tree
at a time."""

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
from millstream.server.sessions.archive import SessionJournal, begun_journal
from millstream.server.sessions.engine_jobs import done_by_engine
from millstream.server.sessions.live_session import Lineage, LiveSession
from millstream.server.sessions.live_sessions import LiveSessions
from millstream.server.sessions.opener import ID_BYTES, Opener
from millstream.serving.notices import Noted
from millstream.serving.service import Service
from millstream.session.forks import as_parent, restart_at
from millstream.session.journal import Journal
from millstream.session.journal_path import read_path
from millstream.session.session import Session
from millstream.session.trail import Restart

T = TypeVar("T")
OTHER_KEPT = "another branch of it was kept"
CLIENT_LEFT = "its client left before the branch began"


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
        """Sentence for its viewers; empty if it is simply there."""
        if not self.exact:
            return (
                f"of chunk {self.chunk} only clean latents were kept: the window is rebuilt from them, so "
                "what follows is near "
                "what it would have been and not the same"
            )
        if self.from_chunk == self.chunk:
            return ""
        return (
            f"it begins at chunk {self.from_chunk}, the last whole state, and is as it was until chunk "
            f"{self.chunk}"
        )

    def as_answer(self) -> dict[str, Any]:
        """Return it as the answers of every protocol have it."""
        return dict(chunk=self.chunk, from_chunk=self.from_chunk, exact=self.exact, note=self.note)


class Branches:
    def __init__(
        self, service: Service, live_sessions: LiveSessions, opener: Opener, *, max_live: int
    ) -> None:
        """`max_live` bounds how many sessions of one tree live at a time."""
        self._service = service
        self._live_sessions = live_sessions
        self._opener = opener
        self._max_live = max_live

    async def fork(self, parent: LiveSession, at_chunk: int | None = None) -> tuple[LiveSession, Went]:
        """Open a branch as the parent is now, or before an earlier chunk that is kept. Raises what stands
        against it."""
        if len(self._live_sessions.of_tree(parent)) >= self._max_live:
            raise Overloaded(
                f"{self._max_live} branches of this session are live already; end one or keep one"
            )
        restart: Restart = await self._on_engine(parent, lambda session: restart_at(session, at_chunk))
        timeline = restart.timeline
        began = Future[Went]()
        began.set_running_or_notify_cancel()  # it is answered, also where the client has left by then
        config = timeline.over(parent.request.config)

        def make(session_id: str, journal: SessionJournal | None) -> Session:
            """Make it on the engine's thread, once there is a place for it. The parent may have gone on
            since."""
            try:
                session = self._service.session(parent.session_id)
                restart = restart_at(session, at_chunk)
                if journal is not None and isinstance(parent.request.journal, SessionJournal):
                    journal.begin_after(as_parent(session, restart, parent.request.journal.place.name))
                branch = session.branch(restart, session_id=session_id, journal=journal)
                branch.timeline.steering = branch.timeline.steering.released()  # its keys are its parent's
            except BaseException as error:
                began.set_exception(error)
                raise
            began.set_result(Went.to(restart))
            return branch

        branch = self._open(parent, timeline.prompts, config, make)
        try:
            went = await _wait(began)
        except BaseException:  # cancelled or too late: no client was told its id, so none could come to it
            branch.end(CLIENT_LEFT)
            raise
        branch.fork_at(went.chunk)
        if went.note:
            branch.tell(Noted(words=went.note, once=True))
        return branch, went

    async def rewind(
        self, live_session: LiveSession, chunk: int, tell: Callable[[Went], None] = lambda went: None
    ) -> Went:
        """Go back to before a chunk that is kept. What was shown from there on is not part of the session any
        more.

        `tell` is called after the last chunk of the old path has been passed on, and before the first of the
        new one is."""
        job = self._service.rewind(live_session.session_id, chunk)

        def in_order(done: Future[Restart]) -> None:
            """On the engine's thread, before it makes another chunk."""
            if not done.cancelled() and done.exception() is None:
                went = Went.to(done.result())
                live_session.between_chunks(lambda: tell(went))

        job.add_done_callback(in_order)
        went = Went.to(await _wait(job))
        if went.note:
            live_session.tell(Noted(words=went.note, once=True))
        return went

    def end_others(self, live_session: LiveSession) -> int:
        """End all other branches of its tree, whose viewers watch this one from now on. Return how many those
        were."""
        others = [other for other in self._live_sessions.of_tree(live_session) if other is not live_session]
        for other in others:
            self._live_sessions.show_instead(other, live_session)
            other.end(OTHER_KEPT)
        return len(others)

    async def kept_chunks(self, live_session: LiveSession) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the chunks that can be gone back to, and of these the ones with a whole state."""
        return await self._on_engine(
            live_session, lambda session: (session.trail.chunks, session.trail.states)
        )

    async def path_of(self, live_session: LiveSession) -> Journal:
        """Return all that led to where a branch is, as one journal. Raises where it has none."""
        place = begun_journal(live_session.request.journal).place
        journals = [live.request.journal for live in self._live_sessions.values()]
        growing = {each.place: each.path for each in journals if isinstance(each, SessionJournal)}
        return await asyncio.to_thread(read_path, place, where=lambda path: growing.get(path, path))

    def _open(
        self,
        parent: LiveSession,
        prompts: tuple[WeightedPrompt, ...],
        config: StreamConfig,
        make: Callable[[str, SessionJournal | None], Session],
    ) -> LiveSession:
        """Open a session on its parent's terms, which `make` makes on the engine's thread once there is a
        place for it."""
        session_id = secrets.token_urlsafe(ID_BYTES)
        journal = self._opener.journal(session_id, config, parent.key)
        lineage = Lineage(parent.lineage.tree, parent.session_id)
        request = replace(
            parent.request,
            session_id=session_id,
            prompts=prompts,
            config=config,
            may_wait=False,
            tree=lineage.tree,
            journal=journal,
            start=lambda: lambda engine: make(session_id, journal),
        )
        try:
            return self._opener.open_request(request, parent.client, parent.key, lineage)
        except Overloaded as error:
            raise Overloaded(
                f"no place for a branch: {error}"
            ) from None  # a rate or the line is offered to no branch

    async def _on_engine(self, live_session: LiveSession, job: Callable[[Session], T]) -> T:
        found: T = await _wait(self._service.on_engine(live_session.session_id, job))
        return found


async def _wait(job: Future[T]) -> T:
    return await done_by_engine(job, otherwise="try again later")
