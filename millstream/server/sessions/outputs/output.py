"""One output: a session's pictures on their way to somebody's address, with a process of its own that sends
them.

It watches its session like any viewer and is as bounded: a receiver that is slow goes without pictures,
oldest first. One that refuses or goes away is tried again, ever less often; after `GIVE_UP_S` without it, no
more. While the session stands still, its last picture is sent again, because receivers hang up on silence.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict

from millstream.core.server_messages import OutputInfo, OutputState
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.outbox import ClientGone, Outbox
from millstream.server.sessions.paced_frames import PacedFrames
from millstream.serving.notices import Noted
from millstream.serving.session_entry import label
from millstream.video.sender import FRAME_HEADER, PATIENCE_S, Sending

log = logging.getLogger(__name__)

SENDER = (sys.executable, "-m", "millstream.video.sender")
RETRY_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""From one try to the next; the last for all that follow."""
GIVE_UP_S = 300.0
"""Without a receiver."""
STILL_S = 0.5
"""Seconds after which the last picture is sent again."""
FAREWELL_S = 5.0
"""Seconds for a process to end by itself."""
MAX_REASON = 200
LEAST_KBPS = 1_000
MOST_KBPS = 6_000
"""Most kbit/s where a client names none; this is what large services take."""
BITS_PER_PIXEL = 0.15


class Output:
    def __init__(self, live_session: LiveSession, url: str, name: str, kbps: int | None = None) -> None:
        """`name` is what it is called in front of others."""
        self.output_id = secrets.token_urlsafe(8)
        self.name = name
        self.state: OutputState = "connecting"
        self.reason = ""
        """Why it is not live; empty while all is well."""
        self.frames = 0
        """Handed to the sender."""
        self.reconnects = 0
        self.kbps = kbps or _fitting_kbps(live_session)
        self._url = url
        self._live_session = live_session
        self._outbox = Outbox()
        self._shown = PacedFrames(self._outbox)
        self._last = (b"", 0.0)
        self._waiting: asyncio.Timeout | None = None
        self._viewer = live_session.join("raw", self._outbox)

    @property
    def info(self) -> OutputInfo:
        return OutputInfo(
            output=self.output_id, url=self.name, state=self.state, reason=self.reason, kbps=self.kbps, frames=self.frames,
            dropped=self._outbox.dropped, reconnects=self.reconnects,
        )  # fmt: skip

    @property
    def is_over(self) -> bool:
        return self.state in ("failed", "ended")

    def stop_watching(self) -> None:
        """Watch no longer; once is enough."""
        self._live_session.remove_viewer(self._viewer)

    async def run(self) -> None:
        """Send until the session is over, it is given up, or this is cancelled."""
        try:
            if await self._next() is not None:
                await self._keep_sending()
        except ClientGone:
            self.reason = "its receiver was too slow"
        except OSError as error:
            self.reason = f"its sender could not be started: {error.strerror}"
        finally:
            self.stop_watching()
            self.state = "failed" if self.reason else "ended"
            self._log(f"output {self.state}{f': {self.reason}' if self.reason else ''}")

    async def _keep_sending(self) -> None:
        missing_since = time.monotonic()
        tries = 0
        while (trouble := await self._send()) is not None:
            if self.state == "live":
                missing_since = time.monotonic()
                tries = 0
            self._tell_of(trouble)
            if time.monotonic() - missing_since > GIVE_UP_S:
                self._live_session.tell(Noted(words=f"an output was given up: {trouble}"))
                return
            if not await self._let_pass(RETRY_S[min(tries, len(RETRY_S) - 1)]):
                break
            tries += 1
            self.reconnects += 1
        self.reason = ""

    def _tell_of(self, trouble: str) -> None:
        """Once for every time that the receiver is lost."""
        if self.state != "retrying":
            self._live_session.tell(Noted(words=f"an output has no receiver and is tried again: {trouble}"))
        self.state = "retrying"
        self.reason = trouble
        self._log(f"output is tried again: {trouble}")

    async def _send(self) -> str | None:
        """To one process, from the last picture on. Why it ended; None where there is nothing more to
        send."""
        async with self._sender() as (pipe, reason):
            if not await self._let_pass(PATIENCE_S):  # what waited for a receiver would be late ever after
                return None
            if self.state != "live":
                return await reason if reason.done() else "it does not answer"
            shown: tuple[bytes, float] | None = self._last
            try:
                while shown is not None:
                    pipe.writelines((FRAME_HEADER.pack(shown[1]), shown[0]))
                    async with asyncio.timeout(PATIENCE_S):
                        await pipe.drain()
                    self.frames += 1
                    shown = await self._next()
            except TimeoutError:
                return "it takes no pictures"
            except OSError:  # the process has ended
                return await reason
        return None

    async def _next(self) -> tuple[bytes, float] | None:
        """The next picture when it is due, or after a while the last one again; None after the last."""
        part, at_s = self._last
        try:
            async with asyncio.timeout(STILL_S if part else None):
                shown = await self._shown.next()
        except TimeoutError:
            shown = (part, at_s + STILL_S)
        if shown is not None:
            self._last = (shown[0], max(shown[1], at_s + 1e-3))
            return self._last
        return None

    async def _let_pass(self, seconds: float) -> bool:
        """Pictures that nobody takes, for so long or until there is news of the sender. Whether there will be
        more."""
        try:
            async with asyncio.timeout(seconds) as self._waiting:
                while (shown := await self._shown.next()) is not None:
                    self._last = shown
                return False
        except TimeoutError:
            return True
        finally:
            self._waiting = None

    def _wait_no_longer(self) -> None:
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def _sender(self) -> AsyncIterator[tuple[asyncio.StreamWriter, asyncio.Task[str]]]:
        """Where frames go, and why it ended once it has."""
        config = self._live_session.request.config
        asked = Sending(
            url=self._url,
            height=config.height,
            width=config.width,
            fps=self._live_session.fps,
            kbps=self.kbps,
        )
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *SENDER, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert process.stdin is not None
        watching = asyncio.ensure_future(self._watch(process))
        try:
            process.stdin.write(json.dumps(asdict(asked)).encode() + b"\n")
            yield process.stdin, watching
        finally:
            process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(watching), FAREWELL_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it may have started itself
            await watching

    async def _watch(self, process: asyncio.subprocess.Process) -> str:
        """Note when the process begins to take pictures; return why it ended."""

        async def read(stream: asyncio.StreamReader | None) -> str:
            first = ""
            assert stream is not None
            async for line in stream:
                first = first or line.decode(errors="replace").strip()
                if stream is process.stdout and self.state != "live":
                    self._came_up()
            return first

        _, words = await asyncio.gather(read(process.stdout), read(process.stderr))
        await process.wait()
        self._wait_no_longer()
        return self._plain(words) or "it does not answer"

    def _came_up(self) -> None:
        if self.state == "retrying":
            self._live_session.tell(Noted(words="an output has its receiver again"))
        self.state = "live"
        self.reason = ""
        self._wait_no_longer()
        self._log("output is live")

    def _plain(self, words: str) -> str:
        """FFmpeg's words without addresses of its memory and without ours, which may hold a key."""
        return re.sub(r"^\[[^]]*\] ", "", words.replace(self._url, self.name))[:MAX_REASON]

    def _log(self, words: str) -> None:
        log.info("%s (%s)", words, self.name, extra={"session": label(self._live_session.session_id)})


def _fitting_kbps(live_session: LiveSession) -> int:
    config = live_session.request.config
    fitting = config.height * config.width * live_session.fps * BITS_PER_PIXEL / 1000
    return int(min(max(fitting, LEAST_KBPS), MOST_KBPS))
