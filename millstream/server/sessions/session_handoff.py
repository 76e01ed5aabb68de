"""Answers to a session's viewers while it moves to another server, and those that are due here before it
may.

Knows neither the session nor its viewers' connections. On the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from millstream.core.server_messages import MovedMessage
from millstream.server.sessions.live_state import LiveState
from millstream.server.sessions.viewers import Viewer
from millstream.serving.notices import Ended

Farewell = Callable[[Viewer], MovedMessage | None]
"""Function that returns what a viewer is sent instead of the end; None: nothing, its connection is lost."""


@contextmanager
def counted(under_way: set[asyncio.Future[None]]) -> Iterator[None]:
    """Count the block among what is under way until it is done."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    under_way.add(done)
    try:
        yield
    finally:
        under_way.discard(done)
        done.set_result(None)


class SessionHandoff:
    def __init__(self, state: LiveState) -> None:
        self._state = state
        self._answering: set[asyncio.Future[None]] = set()
        """Requests to the session that have no answer yet."""
        self._decision: asyncio.Future[bool] | None = None
        """Future of whether it has moved; None while no move is asked for."""
        self._farewell: Farewell | None = None

    def prepare(self) -> None:
        """Block steering from now on, until it is known whether the session moves."""
        self._state.become("leaving")
        self._decision = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        return self._state.name == "leaving"

    def stay(self) -> None:
        self._state.stay()
        if self._decision is not None and not self._decision.done():
            self._decision.set_result(False)
            self._decision = None

    def move(self, farewell: Farewell) -> None:
        """Let the session go on elsewhere. The farewell that was given first holds."""
        self._farewell = self._farewell or farewell
        if not self._state.has_ended:
            self._state.become("moved")
        if self._decision is not None and not self._decision.done():
            self._decision.set_result(True)

    def last_words(self, viewer: Viewer, ended: Ended) -> Ended | MovedMessage | None:
        """Return what a viewer is sent when the session ends here."""
        return ended if self._farewell is None else self._farewell(viewer)

    async def has_left(self) -> bool:
        """Return whether it has moved; waits while that is open. A client that is sent `moved` asks again
        there."""
        return self._decision is not None and await asyncio.shield(self._decision)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[bool]:
        """Return whether the session stays to answer what is asked of it in the block; it moves only after
        that."""
        if await self.has_left():
            yield False
            return
        with counted(self._answering):
            yield True

    async def answered(self, patience_s: float) -> bool:
        """Wait `patience_s` for all requests to be answered; return whether they are."""
        return not self._answering or not (await asyncio.wait(self._answering, timeout=patience_s))[1]
