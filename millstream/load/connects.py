"""Many short visits, one after another: what a server must forget. Each kind of leaving has its turn."""

from __future__ import annotations

import time
from dataclasses import dataclass

from millstream.core.errors import ProtocolBroken
from millstream.load.summary import Summary, summarise
from millstream.load.visitor import Visitor

MAX_ERRORS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectsResult:
    connects: int
    """Connections opened."""
    num_errors: int
    errors: tuple[str, ...]
    visit_s: Summary | None


async def connect_and_leave(url: str, *, connects: int, fps: float | None, until: float) -> ConnectsResult:
    """At least so many connections, unless time is up (`time.monotonic`) before."""
    seconds: list[float] = []
    errors: list[str] = []
    opened = visits = 0
    while opened < connects and time.monotonic() < until:
        visit, needs = VISITS[visits % len(VISITS)]
        begun = time.monotonic()
        visits = visits + 1
        opened = opened + needs
        try:
            await visit(url, fps)
        except ProtocolBroken as error:
            errors.append(str(error))
        seconds.append(time.monotonic() - begun)
    return ConnectsResult(
        connects=opened, num_errors=len(errors), errors=tuple(errors[:MAX_ERRORS]), visit_s=summarise(seconds)
    )


async def _look_in(url: str, fps: float | None) -> None:
    """Hear the greeting and go."""
    async with Visitor(url):
        pass


async def _stay_a_moment(url: str, fps: float | None) -> None:
    """See one chunk and stop."""
    async with Visitor(url) as visitor:
        await visitor.ask(fps=fps)
        await visitor.next_chunk()


async def _vanish_and_return(url: str, fps: float | None) -> None:
    """Drop the connection while the second chunk is made, come back to the session and stop it."""
    async with Visitor(url) as visitor:
        session = await visitor.ask(fps=fps)
        await visitor.next_chunk()
        await visitor.vanish()
    async with Visitor(url) as visitor:
        await visitor.attach(session)


VISITS = ((_look_in, 1), (_stay_a_moment, 1), (_vanish_and_return, 2))
"""And how many connections each makes."""
