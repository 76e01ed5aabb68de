"""All outputs of a server: begun, found, ended. Bounded: each costs a process that encodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from millstream.core.errors import Overloaded
from millstream.core.messages import OutputInfo, ProtocolError
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.outputs.destinations import Destination, check_address
from millstream.server.sessions.outputs.output import Output
from millstream.video.sender import NO_FFMPEG, ffmpeg_program, is_srt

MAX_OF_SESSION = 4
MAX_OUTPUTS = 16


class Outputs:
    """`spawn` does what must be done whether or not whoever asked for it is still there."""

    def __init__(self, allowed: Sequence[Destination], spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]) -> None:
        self._allowed, self._spawn = tuple(allowed), spawn
        self._outputs: dict[str, list[Output]] = {}
        """Of each session that lives, by its id."""

    def infos(self, live_session: LiveSession) -> tuple[OutputInfo, ...]:
        """In the order they began, with those that failed."""
        return tuple(output.info for output in self._outputs.get(live_session.session_id, ()))

    def start(self, live_session: LiveSession, url: str, kbps: int | None = None) -> Output:
        """Raises what is wrong with the address, or that there are too many."""
        name = check_address(url, self._allowed)
        if is_srt(url) and ffmpeg_program() is None:
            raise ProtocolError("bad_state", NO_FFMPEG)
        own = self._outputs.setdefault(live_session.session_id, [])
        own[:] = [output for output in own if not output.is_over]
        if len(own) >= MAX_OF_SESSION or sum(map(len, self._outputs.values())) >= MAX_OUTPUTS:
            raise Overloaded(f"a session may have {MAX_OF_SESSION} outputs, all together {MAX_OUTPUTS}; end one first")
        output = Output(live_session, url, name, kbps)
        own.append(output)
        self._spawn(output.run())
        return output

    def stop(self, live_session: LiveSession, output_id: str) -> None:
        own = self._outputs.get(live_session.session_id, [])
        output = next((each for each in own if each.output_id == output_id), None)
        if output is None:
            raise ProtocolError("not_found", "there is no such output of this session")
        own.remove(output)
        output.stop()

    def forget(self, live_session: LiveSession) -> None:
        """It has ended, and with it its outputs do."""
        self._outputs.pop(live_session.session_id, None)
