"""Whether a session moves to another server: open, decided, or never asked; and what has to be answered here before it may.

Knows neither the session nor its viewers' connections. On the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from millstream.core.server_messages import MovedMessage
from millstream.server.sessions.viewers import Viewer
from millstream.serving.notices import Ended

Farewell = Callable[[Viewer], MovedMessage | None]
"""What a viewer hears instead of the end; None: nothing, its connection is lost."""


@contextmanager
def counted(under_way: set[asyncio.Future[None]]) -> Iterator[None]:
    """What is done here is among what is under way until it is done."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    under_way.add(done)
    try:
        yield
    finally:
        under_way.discard(done)
        done.set_result(None)


class Departure:
    def __init__(self) -> None:
        self._answering: set[asyncio.Future[None]] = set()
        """What is asked of the session and has no answer yet."""
        self._decision: asyncio.Future[bool] | None = None
        """Whether it has moved; None while nobody wants it to."""
        self._farewell: Farewell | None = None

    def prepare(self) -> None:
        """From now on nobody steers it, until it is known whether it moves."""
        assert self._decision is None, "it is leaving already"
        self._decision = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        return self._decision is not None and not self._decision.done()

    def stay(self) -> None:
        if self._decision is not None and not self._decision.done():
            self._decision.set_result(False)
            self._decision = None

    def move(self, farewell: Farewell) -> None:
        """It goes on elsewhere. What was said first holds."""
        self._farewell = self._farewell or farewell
        if self._decision is not None and not self._decision.done():
            self._decision.set_result(True)

    def last_words(self, viewer: Viewer, ended: Ended) -> Ended | MovedMessage | None:
        """What a viewer hears when the session ends here."""
        return ended if self._farewell is None else self._farewell(viewer)

    async def has_left(self) -> bool:
        """Whether it has moved; waits while that is open. Who hears `moved` says again what was not answered."""
        return self._decision is not None and await asyncio.shield(self._decision)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[bool]:
        """Something is asked of it: whether it stays to answer, which it does before it moves."""
        if await self.has_left():
            yield False
            return
        with counted(self._answering):
            yield True

    async def answered(self, patience_s: float) -> bool:
        """Whether all that was asked of it has its answer, within so long."""
        return not self._answering or not (await asyncio.wait(self._answering, timeout=patience_s))[1]
