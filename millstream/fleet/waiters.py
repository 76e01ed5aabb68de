"""Those who wait for a place: each hears its position when that changes, and in the end where it is let in, or why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from millstream.fleet.policy.types import Place
from millstream.serving.admission_types import Queued, Refused

Tell = Callable[[Queued], object]


@dataclass(eq=False, slots=True)
class _Waiter:
    place: asyncio.Future[Place | Refused]
    tell: Tell
    told: int = 0
    """Its position when it was told last."""


@dataclass(eq=False, slots=True)
class Waiters:
    _by_session: dict[str, _Waiter] = field(default_factory=dict)

    async def wait(self, session_id: str, tell: Tell, line: Iterable[Queued]) -> Place | Refused:
        """Until there is an answer. Who asks anew for the same session takes the place of who asked before."""
        waiter = self._by_session[session_id] = _Waiter(asyncio.get_running_loop().create_future(), tell)
        self.tell(line)
        try:
            return await waiter.place
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
            if waiter is not None and waiter.told != queued.position:
                waiter.told = queued.position
                waiter.tell(queued)
