"""All outputs of a server: begun, found, ended. Bounded: each costs a process that encodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import Overloaded
from millstream.core.server_messages import OutputInfo
from millstream.server.access.shares import Quota
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.outputs.destinations import Destination, check_address
from millstream.server.sessions.outputs.output import Output
from millstream.video.sender import missing

MAX_OF_SESSION = 4
MAX_OF_CLIENT = 16
"""All clients together may have an eighth more."""


class Outputs:
    """`spawn` does what must be done whether or not whoever asked for it is still there."""

    def __init__(
        self, allowed: Sequence[Destination], spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._allowed = tuple(allowed)
        self._spawn = spawn
        self._running: dict[LiveSession, dict[Output, asyncio.Task[None]]] = {}
        """Outputs of each session that lives, in the order they began, with those that failed."""

    def infos(self, live_session: LiveSession) -> tuple[OutputInfo, ...]:
        return tuple(output.info for output in self._running.get(live_session, ()))

    def start(self, live_session: LiveSession, url: str, kbps: int | None = None) -> Output:
        """Raises what is wrong with the address, or that there are too many."""
        name = check_address(url, self._allowed)
        if trouble := missing(url):
            raise ProtocolError("bad_state", trouble)
        own = self._running.setdefault(live_session, {})
        for output in [each for each in own if each.is_over]:
            del own[output]
        self._check_room(live_session)
        output = Output(live_session, url, name, kbps)
        own[output] = self._spawn(output.run())
        return output

    def _check_room(self, live_session: LiveSession) -> None:
        if len(self._running[live_session]) >= MAX_OF_SESSION:
            raise Overloaded(f"a session may have {MAX_OF_SESSION} outputs; end one first")
        counts = [(each.client, len(outputs)) for each, outputs in self._running.items()]
        of_client = sum(count for client, count in counts if client == live_session.client)
        Quota(MAX_OF_CLIENT).check("outputs", own=of_client, all=sum(count for _, count in counts))

    def stop(self, live_session: LiveSession, output_id: str) -> None:
        own = self._running.get(live_session, {})
        output = next((each for each in own if each.output_id == output_id), None)
        if output is None:
            raise ProtocolError("not_found", "there is no such output of this session")
        own.pop(output).cancel()
        output.stop_watching()  # one that was cancelled before it began does not

    def forget(self, live_session: LiveSession) -> None:
        """It has ended, and with it its outputs do."""
        self._running.pop(live_session, None)
