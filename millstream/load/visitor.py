"""A client that only looks: no script, no clock. Each answer is waited for, and an unexpected one is an
error."""

from __future__ import annotations

import itertools
import time
from types import TracebackType
from typing import TypeVar

from millstream.client.chunk import ClientChunk
from millstream.client.connection import Connection
from millstream.core.client_messages import VERSION, Attach, End, Start
from millstream.core.errors import ProtocolBroken
from millstream.core.examples import DEFAULT_PROMPT
from millstream.core.server_messages import ChunkHeader, EndedMessage, ErrorMessage, Hello, LiveMessage
from millstream.load.loopback import open_here

PATIENCE_S = 30.0
_seeds = itertools.count()
"""One each: a server makes chunks once for sessions that begin alike, which strangers do not."""
Answer = TypeVar("Answer", Hello, LiveMessage, EndedMessage, ClientChunk)


class Visitor:
    """A connection for as long as a block lasts; a session it has is ended with it."""

    def __init__(self, url: str, *, format: str = "jpeg") -> None:
        self._url = url
        self._formats = (format,)
        self._connection: Connection
        self._live = False

    async def __aenter__(self) -> Visitor:
        self._connection = await open_here(self._url)
        await self._hear(Hello)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._live and kind is None:
                await self._connection.say(End())
                await self._hear(EndedMessage)
        finally:
            await self._connection.close()

    async def ask(self, *, fps: float | None, lead_s: float | None = None) -> str:
        """For a session, and be live with it. Raises `VisitRefused` when there is no room for that frame
        rate."""
        await self._connection.say(
            Start(
                version=VERSION,
                prompt=DEFAULT_PROMPT,
                fps="auto" if fps is None else fps,
                strict=fps is not None,
                seed=next(_seeds),
                formats=self._formats,
                wait=False,
                lead_s=lead_s,
            )
        )
        return await self._become_live()

    async def attach(self, session: str) -> None:
        await self._connection.say(Attach(version=VERSION, session=session, formats=self._formats))
        await self._become_live()

    async def next_chunk(self) -> ChunkHeader:
        assert self._live, "pictures are for who has a session"
        return (await self._hear(ClientChunk)).header

    async def vanish(self) -> None:
        """Without a goodbye; the session is left standing."""
        self._live = False
        await self._connection.vanish()

    async def _become_live(self) -> str:
        live = await self._hear(LiveMessage)
        self._live = True
        return live.session

    async def _hear(self, wanted: type[Answer]) -> Answer:
        patience = time.monotonic() + PATIENCE_S
        while (heard := await self._connection.hear(patience)) is not None:
            if isinstance(heard, wanted):
                return heard
            if isinstance(heard, ErrorMessage):
                raise (VisitRefused if heard.code == "refused" else ProtocolBroken)(
                    f"{heard.code}: {heard.message}"
                )
            if isinstance(heard, EndedMessage):
                raise ProtocolBroken(f"the session ended unasked: {heard.cause}, {heard.reason}")
        raise ProtocolBroken(f"no {wanted.__name__} within {PATIENCE_S:g} s")


class VisitRefused(ProtocolBroken):
    """There was no room."""
