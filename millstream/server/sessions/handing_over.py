"""A session that goes on at another server: it stands still, its state is left where that one finds it, its people are told.

Until the other has it, it can be taken back, and goes on here as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.core.errors import MillstreamError, NotAllowed
from millstream.core.server_messages import MovedMessage
from millstream.server.sessions.departure import Farewell
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.viewers import Viewer

ANSWERED_S = 5.0
"""For what was asked of a session to have its answer, before it moves."""


async def hand_over(hub: SessionHub, live_session: LiveSession) -> None:
    """Stand still, and leave its state where another server finds it. Raises where it cannot be left; then it goes on."""
    assert hub.keeper is not None, "what is not kept cannot be handed over"
    live_session.departure.prepare()
    try:
        if not await live_session.departure.answered(ANSWERED_S) or live_session.tape is not None:
            raise NotAllowed("it is being recorded, or makes what was asked of it")
        hub.service.hold(live_session.session_id)
        await hub.keeper.hand_over(live_session)
    except MillstreamError:
        take_back(hub, live_session)
        raise


def take_back(hub: SessionHub, live_session: LiveSession) -> None:
    """Nobody else has taken it over: it goes on here."""
    live_session.departure.stay()
    hub.service.let_go_on(live_session.session_id)


def give_up(hub: SessionHub, live_session: LiveSession) -> None:
    """It goes on elsewhere, or is to: here it ends, and what is kept of it stays. Who watches is not told that it has ended,
    but loses the connection, and asks the first address where it is."""
    _leave(hub, live_session, lambda viewer: None)


def release(hub: SessionHub, live_session: LiveSession, moved: Callable[[Viewer], MovedMessage]) -> None:
    """It goes on elsewhere, and each of its viewers is told where."""
    _leave(hub, live_session, moved)


def _leave(hub: SessionHub, live_session: LiveSession, moved: Farewell) -> None:
    live_session.departure.move(moved)
    hub.let_be(live_session)
    hub.service.end(live_session.session_id, "it goes on elsewhere")
