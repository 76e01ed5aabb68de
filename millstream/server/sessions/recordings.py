"""Recordings of live sessions: begun, ended, and kept as far as they came when the disk fails.

Frames come to a tape from its live session; files and encoders are the archive's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import VideoError
from millstream.server.access.keys import Key
from millstream.server.sessions.archive import DISK_FAILS, Archive
from millstream.server.sessions.live_session import LiveSession, Tape
from millstream.serving.notices import Noted
from millstream.serving.session_entry import label

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TapeLost:
    """A recording that ended early; without a name where nothing of it was kept."""

    name: str


class Recordings:
    """`spawn` does what must be done whether or not whoever asked for it is still there."""

    def __init__(
        self, archive_of: Callable[[Key], Archive], spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
    ) -> None:
        self._archive_of, self._spawn = archive_of, spawn

    def start(self, live_session: LiveSession, *, fps: float | None = None) -> str:
        """The name it will have; one that runs already goes on. With `fps` it plays at that rate, whatever is live."""
        if live_session.tape is None:
            lost, archive = partial(self._lose, live_session), self._archive_of(live_session.key)
            name, recording = archive.record(fps or live_session.fps, lambda name: self._spawn(lost(name)))
            live_session.tape = Tape(name, recording, fps)
        return live_session.tape.name

    async def stop(self, live_session: LiveSession) -> str:
        """The name of the whole file; empty where nothing was recorded. It is kept also if whoever asked goes meanwhile."""
        tape, live_session.tape = live_session.tape, None
        return "" if tape is None else await asyncio.shield(self._spawn(self._keep(live_session, tape)))

    async def switch(self, live_session: LiveSession, on: bool) -> str:
        """Started or stopped in a client's words: the name it has, or will have."""
        if on:
            return self.start(live_session)
        if live_session.tape is None:
            raise ProtocolError("bad_state", "nothing is being recorded")
        name = await self.stop(live_session)
        if not name:
            raise ProtocolError("bad_state", "no chunk came while it was recorded, so there is no file")
        return name

    async def _keep(self, live_session: LiveSession, tape: Tape) -> str:
        try:
            recorded = await tape.recording.finish()
        except VideoError as error:
            log.warning("nothing was recorded: %s", error, extra={"session": label(live_session.session_id)})
            if tape.recording.broken:
                live_session.tell(Noted(words=f"nothing of the recording could be kept: {DISK_FAILS}"))
            return ""
        if recorded.cut_short:
            live_session.tell(Noted(words=f"the recording ended early and is kept as far as it came: {DISK_FAILS}"))
        log.info("recorded %s: %d frames", tape.name, recorded.num_frames, extra={"session": label(live_session.session_id)})
        self._archive_of(live_session.key).store.keep("recordings", tape.name, owner=live_session.client)
        live_session.recordings.append(tape.name)
        return tape.name

    async def _lose(self, live_session: LiveSession, name: str) -> None:
        """The disk has failed a recording. It ends with what is whole, unless somebody is ending it already."""
        if live_session.tape is not None and live_session.tape.name == name:
            live_session.put(TapeLost(await self.stop(live_session)))
