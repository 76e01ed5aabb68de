"""Sessions that were kept and go on: a saved one as a new one, one whose server ended or failed under its old
names.

On the event loop; what was kept is read on the engine's thread, when the session has its place.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from millstream.core.errors import MillstreamError, UnknownSession
from millstream.core.keys import NAMELESS, Key
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.server.sessions.archive import Archive, SavedSession
from millstream.server.sessions.keeper import Keeper, Returned
from millstream.server.sessions.live_session import Lineage, LiveSession
from millstream.server.sessions.live_sessions import LiveSessions
from millstream.server.sessions.opener import ID_BYTES, Opener
from millstream.serving.service import Service
from millstream.serving.session_entry import NOTHING, OpenRequest, ViewerPosition
from millstream.session.feed import LiveFeed
from millstream.session.session import Session


class SessionRestorer:
    def __init__(
        self,
        service: Service,
        live_sessions: LiveSessions,
        opener: Opener,
        archive_of: Callable[[Key], Archive],
        keeper: Keeper | None,
        *,
        may_wait: bool,
    ) -> None:
        """`may_wait`: a session that comes back stands in line where there is no place."""
        self._service = service
        self._live_sessions = live_sessions
        self._opener = opener
        self._archive_of = archive_of
        self._keeper = keeper
        self._may_wait = may_wait
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Sessions whose kept state is being fetched."""

    async def restore(
        self, snapshot_name: str, *, client: str = "", key: Key = NAMELESS, session_id: str = ""
    ) -> LiveSession:
        """Open a saved session as a new one; it gets an id of its own where none is given."""
        saved = await self._archive_of(key).find_saved(snapshot_name)
        session_id = session_id or secrets.token_urlsafe(ID_BYTES)
        request = self._request(saved, session_id, key, rate="auto", weight=key.weight)
        return self._opener.open_request(request, client, key)

    async def attach(
        self,
        session_id: str,
        key: Key = NAMELESS,
        *,
        client: str = "",
        has: ViewerPosition = NOTHING,
        yields: bool = False,
    ) -> LiveSession:
        """Find a session by the name that steers it: one that is here, or one that was kept, which goes on
        under its old names and makes up for the chunks that its client `has`. If it `yields`, at less than
        its rate where others need theirs."""
        async with self._fetching.setdefault(
            session_id, asyncio.Lock()
        ):  # its state is fetched once, however many come
            if session_id not in self._live_sessions and self._keeper is not None:
                back = await self._keeper.find(session_id, key)
                pinned = await self._archive_of(key).pin(back.saved, owner=client)
                return self._bring_back(replace(back, saved=pinned), client, key, has, yields)
        found = self._live_sessions.find(session_id, key)
        self._service.catch_up(session_id, has)
        return found

    async def find_kept(self, session_id: str, key: Key = NAMELESS) -> OpenRequest:
        """Return the request that would open a session that was kept and is not live."""
        if self._keeper is None:
            raise UnknownSession("there is no such session; it may have ended")
        back = await self._keeper.find(session_id, key)
        kept = back.kept
        return self._request(
            back.saved, session_id, key, rate=kept.rate, weight=kept.weight, lead_s=kept.lead_s
        )

    def _bring_back(
        self, back: Returned, client: str, key: Key, has: ViewerPosition, yields: bool
    ) -> LiveSession:
        kept = back.kept
        terms = dict(
            rate=kept.rate,
            weight=kept.weight,
            lead_s=kept.lead_s,
            unattended=kept.unattended,
            source=kept.source,
        )
        request = self._request(back.saved, kept.session_id, key, back, **terms)
        try:
            request = replace(
                request, media_s=kept.media_s, has=has, may_wait=self._may_wait, yields=yields, tree=kept.tree
            )
            lineage = Lineage(kept.tree or kept.session_id, kept.parent_id, kept.forked_at)
            return self._opener.open_request(request, client, key, lineage, back)
        except MillstreamError:
            self._archive_of(key).store.remove("snapshots", back.saved.path.stem)
            raise

    def _request(
        self, saved: SavedSession, session_id: str, key: Key, back: Returned | None = None, **terms: Any
    ) -> OpenRequest:
        """Ask for what was saved; it is read when it has its place, and then told what came too late for
        it."""
        config = key.paced(saved.header.config, may_lower=terms["rate"] == "auto")
        timeline = saved.header.timeline
        feed = LiveFeed((config.height, config.width)) if timeline.has_input else None
        journal = self._opener.journal(session_id, config, key)

        def revive(copied: snapshot.Snapshot, engine: Engine) -> Session:
            session = snapshot.revive(copied, engine, session_id, feed=feed, journal=journal)
            if back is not None:
                session.take_up(
                    ((each.control, each.at_chunk) for each in back.late), open_from=back.open_from
                )
            return session

        return OpenRequest(
            session_id=session_id,
            prompts=timeline.prompts,
            config=config,
            may_wait=True,
            **terms,
            **self._opener.bounds,
            feed=feed,
            journal=journal,
            start=lambda: partial(revive, saved.read(journal)),
        )
