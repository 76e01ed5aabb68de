"""The recordings of one live session: begun, ended, and kept as far as they came when the disk fails.

Frames come from the session; files and encoders are the archive's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import VideoError
from millstream.server.sessions.archive import DISK_FAILS, Archive
from millstream.serving.session_entry import label
from millstream.video.encoding import Frames
from millstream.video.recording import Recording

log = logging.getLogger(__name__)

T = TypeVar("T")
MAX_LISTED = 64


class Spawn(Protocol):
    """Runs something on the event loop to its end, also when the caller has gone."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> asyncio.Task[T]: ...


@dataclass(frozen=True, slots=True)
class RecordingFailed:
    """A recording that ended early; without a name where nothing of it was kept."""

    name: str


@dataclass(frozen=True, slots=True)
class ActiveRecording:
    """Recording under way, and the name it will have."""

    name: str
    recording: Recording
    fps: float | None = None
    """Frame rate of the file; None: the rate at which its frames play live."""


class SessionRecordings:
    """At most one recording under way, and the names of the whole ones, the newest last; the oldest are
    forgotten first."""

    def __init__(
        self,
        session_id: str,
        owner: str,
        archive: Callable[[], Archive],
        spawn: Spawn,
        *,
        note: Callable[[str], None],
        failed: Callable[[RecordingFailed], None],
    ) -> None:
        """`archive` raises where nothing is kept. `note` and `failed` tell the session's viewers what became
        of a recording."""
        self.names: deque[str] = deque(maxlen=MAX_LISTED)
        self.active: ActiveRecording | None = None
        self._session_id = session_id
        self._owner = owner
        self._archive = archive
        self._spawn = spawn
        self._note = note
        self._failed = failed

    @property
    def fed_at(self) -> float:
        """Time at which a recording last took frames; minus infinity where none is under way."""
        return float("-inf") if self.active is None else self.active.recording.fed_at

    def start(self, live_fps: float, fps: float | None = None) -> str:
        """Return the name it will have; one under way goes on. With `fps` it plays at that rate, whatever is
        live."""
        if self.active is None:
            name, recording = self._archive().record(
                fps or live_fps, lambda name: self._spawn(self._end_failed(name))
            )
            self.active = ActiveRecording(name, recording, fps)
        return self.active.name

    def add(self, frames_THW3: Frames, live_fps: float) -> None:
        if self.active is not None:
            self.active.recording.add(frames_THW3, self.active.fps or live_fps)

    async def stop(self) -> str:
        """Return the name of the whole file; empty where nothing was recorded. It is kept also if the caller
        is cancelled."""
        active = self.active
        self.active = None
        return "" if active is None else await asyncio.shield(self._spawn(self._keep(active)))

    async def stop_asked(self) -> str:
        """Stop it for a client: raises where there is nothing to stop or nothing was recorded."""
        if self.active is None:
            raise ProtocolError("bad_state", "nothing is being recorded")
        name = await self.stop()
        if not name:
            raise ProtocolError("bad_state", "no chunk came while it was recorded, so there is no file")
        return name

    async def _keep(self, active: ActiveRecording) -> str:
        about = {"session": label(self._session_id)}
        try:
            recorded = await active.recording.finish()
        except VideoError as error:
            log.warning("nothing was recorded: %s", error, extra=about)
            if active.recording.broken:
                self._note(f"nothing of the recording could be kept: {DISK_FAILS}")
            return ""
        if recorded.cut_short:
            self._note(f"the recording ended early and is kept as far as it came: {DISK_FAILS}")
        log.info("recorded %s: %d frames", active.name, recorded.num_frames, extra=about)
        self._archive().store.add("recordings", active.name, owner=self._owner)
        self.names.append(active.name)
        return active.name

    async def _end_failed(self, name: str) -> None:
        """The disk has failed a recording. It ends with what is whole, unless it is being ended already."""
        if self.active is not None and self.active.name == name:
            self._failed(RecordingFailed(await self.stop()))
