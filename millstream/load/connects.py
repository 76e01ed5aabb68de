"""Many short visits, one after another: what a server must forget. Each kind of leaving has its turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.core.errors import ProtocolBroken
from millstream.load.connection import Connection
from millstream.load.messages import VERSION, Attach, ChunkHeader, Ended, Error, Heard, Hello, Live, Start, StopSession
from millstream.load.script import PROMPTS
from millstream.load.summary import Summary, summarise

FORMATS = ("jpeg",)
PATIENCE_S = 15.0
MAX_ERRORS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectsResult:
    connects: int
    """Connections opened."""
    num_errors: int
    errors: tuple[str, ...]
    visit_s: Summary | None


async def connect_and_leave(url: str, *, connects: int, fps: float, until: float) -> ConnectsResult:
    """At least so many connections, unless time is up (`time.monotonic`) before."""
    seconds: list[float] = []
    errors: list[str] = []
    opened = visits = 0
    while opened < connects and time.monotonic() < until:
        visit, needs = VISITS[visits % len(VISITS)]
        begun, visits, opened = time.monotonic(), visits + 1, opened + needs
        try:
            await visit(url, fps)
        except ProtocolBroken as error:
            errors.append(str(error))
        seconds.append(time.monotonic() - begun)
    return ConnectsResult(
        connects=opened, num_errors=len(errors), errors=tuple(errors[:MAX_ERRORS]), visit_s=summarise(seconds)
    )


async def _look_in(url: str, fps: float) -> None:
    """Hear the greeting and go."""
    connection = await Connection.open(url)
    await _hear(connection, (Hello,))
    await connection.close()


async def _stay_a_moment(url: str, fps: float) -> None:
    """See one chunk and stop."""
    connection = await Connection.open(url)
    await _start(connection, fps)
    await _stop(connection)


async def _vanish_and_return(url: str, fps: float) -> None:
    """Drop the connection while the second chunk is made, come back to the session and stop it."""
    connection = await Connection.open(url)
    session = await _start(connection, fps)
    await connection.vanish()
    connection = await Connection.open(url)
    await _hear(connection, (Hello,))
    await connection.say(Attach(version=VERSION, session=session, formats=FORMATS))
    await _hear(connection, (Live,))
    await _stop(connection)


VISITS = ((_look_in, 1), (_stay_a_moment, 1), (_vanish_and_return, 2))
"""And how many connections each makes."""


async def _start(connection: Connection, fps: float) -> str:
    await _hear(connection, (Hello,))
    await connection.say(Start(version=VERSION, prompt=PROMPTS[0], fps=fps, seed=0, formats=FORMATS, wait=False))
    live = await _hear(connection, (Live,))
    await _hear(connection, (ChunkHeader,))
    assert isinstance(live, Live)
    return live.session


async def _stop(connection: Connection) -> None:
    await connection.say(StopSession())
    await _hear(connection, (Ended,))
    await connection.close()


async def _hear(connection: Connection, kinds: Sequence[type[Heard]]) -> Heard:
    """The next message of such a kind; whatever the server complains of is an error."""
    patience = time.monotonic() + PATIENCE_S
    while (heard := await connection.hear(patience)) is not None:
        if isinstance(heard, tuple(kinds)):
            return heard
        if isinstance(heard, (Error, Ended)):
            raise ProtocolBroken(f"unexpected: {heard}")
    raise ProtocolBroken(f"no {' or '.join(kind.__name__ for kind in kinds)} within {PATIENCE_S:g} s")
