"""Clients that wait for a place: each is sent its position when that changes, and in the end where it is let
in, or why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from millstream.fleet.policy.types import Place
from millstream.serving.admission_types import Queued, Refused

Tell = Callable[[Queued], object]
SAID_AGAIN_S = 5.0
"""Seconds after which a waiting client gets its place in line again: silence would look like a lost line."""


@dataclass(eq=False, slots=True)
class _Waiter:
    place: asyncio.Future[Place | Refused]
    tell: Tell
    last: Queued | None = None
    """Latest notice sent to this client."""


@dataclass(eq=False, slots=True)
class Waiters:
    _by_session: dict[str, _Waiter] = field(default_factory=dict)

    async def wait(self, session_id: str, tell: Tell, line: Iterable[Queued]) -> Place | Refused:
        """Wait until there is an answer. A client that asks anew for the same session replaces the one that
        asked before."""
        waiter = self._by_session[session_id] = _Waiter(asyncio.get_running_loop().create_future(), tell)
        self.tell(line)
        try:
            while not (await asyncio.wait({waiter.place}, timeout=SAID_AGAIN_S))[0]:
                if waiter.last is not None:
                    tell(waiter.last)
            return waiter.place.result()
        finally:
            if self._by_session.get(session_id) is waiter:
                del self._by_session[session_id]

    def answer(self, decision: Place | Refused) -> None:
        waiter = self._by_session.get(decision.session_id)
        if waiter is not None and not waiter.place.done():
            waiter.place.set_result(decision)

    def tell(self, line: Iterable[Queued]) -> None:
        for queued in line:
            waiter = self._by_session.get(queued.session_id)
            if waiter is not None and (waiter.last is None or waiter.last.position != queued.position):
                waiter.last = queued
                waiter.tell(queued)
