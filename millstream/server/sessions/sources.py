"""The videos that a server offers as an input, by name: whoever may open a session may name one, and nobody
names a path.

A source plays while some session takes it, once for all of them: who comes later sees what the others see.
Each session is given the newest frame, at its own rate and in its own size.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from millstream.core.errors import ConfigError, UnknownFile
from millstream.server.sessions.live_session import LiveSession
from millstream.serving.notices import Noted
from millstream.video.live_source import LiveSource, SourceAddress, picture_of


@dataclass(slots=True)
class _Playing:
    source: LiveSource
    sessions: set[LiveSession]
    """All that take it. Its thread reads it."""


@dataclass(slots=True)
class Sources:
    addresses: dict[str, SourceAddress] = field(default_factory=dict)
    _playing: dict[str, _Playing] = field(default_factory=dict)

    @classmethod
    def of(cls, addresses: Iterable[SourceAddress]) -> Sources:
        found: dict[str, SourceAddress] = {}
        for each in addresses:
            if each.name in found:
                raise ConfigError(f"there are two --source {each.name}; give each its own name")
            found[each.name] = each
        return cls(found)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.addresses)

    def check(self, name: str) -> None:
        if name not in self.addresses:
            known = f"there are {', '.join(self.names)}" if self.addresses else "this server has none"
            raise UnknownFile(f"there is no source {name[:40]!r}; {known}")

    async def feed(self, live_session: LiveSession, pool: Executor) -> None:
        """Until the session ends. One that is not there any more is told."""
        name = live_session.request.source
        feed = live_session.request.feed
        assert feed is not None, f"{live_session.session_id} was opened without input"
        if name not in self.addresses:
            live_session.tell(
                Noted(words=f"the source {name} is not offered any more; the stream waits for it")
            )
            return
        playing = self._start(name, live_session)
        try:
            await _pass_on(playing.source, live_session, feed.size, pool)
        finally:
            await self._stop(name, live_session)

    def _start(self, name: str, live_session: LiveSession) -> _Playing:
        playing = self._playing.get(name)
        if playing is not None:
            if playing.source.trouble:
                live_session.tell(Noted(words=playing.source.trouble))
            playing.sessions.add(live_session)
            return playing
        sessions = {live_session}  # before it plays: the first thing it has to tell may be trouble

        def tell(words: str) -> None:
            for each in tuple(sessions):
                each.tell(Noted(words=words))

        playing = self._playing[name] = _Playing(LiveSource(self.addresses[name], tell), sessions)
        return playing

    async def _stop(self, name: str, live_session: LiveSession) -> None:
        playing = self._playing[name]
        playing.sessions.discard(live_session)
        if not playing.sessions:
            del self._playing[name]
            await asyncio.to_thread(playing.source.close)


async def _pass_on(
    source: LiveSource, live_session: LiveSession, size: tuple[int, int], pool: Executor
) -> None:
    loop = asyncio.get_running_loop()
    due = time.monotonic()
    shown = None
    picture = None
    while not live_session.ended:
        frame = source.latest
        if frame is not None and frame is not shown:
            shown = frame
            picture = await loop.run_in_executor(pool, picture_of, frame, size)
        if picture is not None:
            live_session.push(picture)
        due = max(due + 1 / live_session.fps, time.monotonic() - 1)  # what is long past is not made up for
        await asyncio.sleep(due - time.monotonic())
