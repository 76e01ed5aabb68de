"""Sessions that were kept and go on: a saved one as a new one, one whose server ended or failed under its old names.

On the event loop; what was kept is read on the engine's thread, when the session has its place.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from functools import partial
from typing import Any

from millstream.core.errors import MillstreamError, UnknownSession
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.server.access.keys import NAMELESS, Key
from millstream.server.sessions.archive import SavedSession
from millstream.server.sessions.hub import ID_BYTES, SessionHub
from millstream.server.sessions.keeper import Returned
from millstream.server.sessions.live_session import LiveSession
from millstream.serving.session_entry import NOTHING, Has, OpenRequest
from millstream.session.feed import LiveFeed
from millstream.session.kept import LoggedControl
from millstream.session.session import Session


async def restore(hub: SessionHub, snapshot_name: str, *, client: str = "", key: Key = NAMELESS) -> LiveSession:
    """A saved session, as a new one."""
    saved, session_id = await hub.archive_of(key).find_saved(snapshot_name), secrets.token_urlsafe(ID_BYTES)
    return hub.opened(_going_on(hub, saved, session_id, key, rate="auto", weight=key.weight), client, key)


async def attach(
    hub: SessionHub, session_id: str, key: Key = NAMELESS, *, client: str = "", has: Has = NOTHING, yields: bool = False
) -> LiveSession:
    """A session by the name that steers it: one that is here, or one that was kept, which goes on under its old names and
    makes up for the chunks that its client `has`. If it `yields`, at less than its rate where others need theirs."""
    async with hub.returning.setdefault(session_id, asyncio.Lock()):  # its state is fetched once, however many come
        if session_id not in hub.live_sessions and hub.keeper is not None:
            back = await hub.keeper.find(session_id, key)
            pinned = await hub.archive_of(key).pin(back.saved, owner=client)
            return _brought_back(hub, replace(back, saved=pinned), client, key, has, yields)
    found = hub.find(session_id, key)
    hub.service.catch_up(session_id, has)
    return found


async def find_kept(hub: SessionHub, session_id: str, key: Key = NAMELESS) -> OpenRequest:
    """One that was kept and is not live, as it would be asked for."""
    if hub.keeper is None:
        raise UnknownSession("there is no such session; it may have ended")
    back = await hub.keeper.find(session_id, key)
    return _going_on(hub, back.saved, session_id, key, rate=back.kept.rate, weight=back.kept.weight, lead_s=back.kept.lead_s)


def _brought_back(hub: SessionHub, back: Returned, client: str, key: Key, has: Has, yields: bool) -> LiveSession:
    kept = back.kept
    terms = dict(rate=kept.rate, weight=kept.weight, lead_s=kept.lead_s, unattended=kept.unattended, source=kept.source)
    request = _going_on(hub, back.saved, kept.session_id, key, late=back.late, **terms)
    may_wait = not hub.card.moves  # a fleet has one line for all its servers
    try:
        request = replace(request, media_s=kept.media_s, has=has, may_wait=may_wait, yields=yields, tree=kept.tree)
        live_session = hub.opened(request, client, key, back)
    except MillstreamError:
        hub.archive_of(key).store.remove("snapshots", back.saved.path.stem)
        raise
    live_session.parent_id, live_session.forked_at = kept.parent_id, kept.forked_at
    return live_session


def _going_on(
    hub: SessionHub, saved: SavedSession, session_id: str, key: Key, *, late: tuple[LoggedControl, ...] = (), **terms: Any
) -> OpenRequest:
    """What was saved, as it is asked for; it is read when it has its place, and then told what came too late for it."""
    config, timeline = key.paced(saved.header.config, terms["rate"]), saved.header.timeline
    feed = LiveFeed((config.height, config.width)) if timeline.has_input else None
    journal = hub.journal(session_id, config, key)

    def revive(copied: snapshot.Snapshot, engine: Engine) -> Session:
        session = snapshot.revive(copied, engine, session_id, feed=feed, journal=journal)
        for each in late:
            session.control(each.control, at_chunk=each.at_chunk)
        return session

    return OpenRequest(
        session_id=session_id,
        prompts=timeline.prompts,
        config=config,
        may_wait=True,
        **terms,
        **hub.bounds,
        feed=feed,
        journal=journal,
        start=lambda: partial(revive, saved.read(journal)),
    )
