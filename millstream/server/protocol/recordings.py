"""A recording started or stopped in a client's words: the native socket's and REST's."""

from __future__ import annotations

from millstream.core.client_messages import ProtocolError
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession


async def switch_recording(hub: SessionHub, live_session: LiveSession, on: bool) -> str:
    """The name it has, or will have."""
    if on:
        return hub.recordings.start(live_session)
    if live_session.tape is None:
        raise ProtocolError("bad_state", "nothing is being recorded")
    name = await hub.recordings.stop(live_session)
    if not name:
        raise ProtocolError("bad_state", "no chunk came while it was recorded, so there is no file")
    return name
