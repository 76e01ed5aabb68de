"""Scene of every abuse: target, source address, end, chance; and counts of what it did."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.soak.abuses.frames import TEXT, RawSocket
from tests.soak.abuses.http import Caller, Request, post
from tests.soak.abuses.target import Target

BREATH_S = 0.05
"""Between being thrown out and coming back."""
PATIENCE_S = 10.0


@dataclass(slots=True)
class Scene:
    target: Target
    chance: random.Random
    until: float
    """`time.monotonic` when it is over."""
    did: Counter[str] = field(default_factory=Counter)
    source: str | None = None
    """One client's address: limits for each are felt."""

    def __post_init__(self) -> None:
        self.source = self.source or self.target.source(self.chance)

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    async def crowd(self, size: int, act: Callable[[], Awaitable[None]]) -> None:
        """So many at once, each again and again. To be thrown out is part of it."""

        async def keep_on() -> None:
            while self.left_s:
                try:
                    await asyncio.wait_for(act(), self.left_s)
                except (OSError, asyncio.TimeoutError):
                    self.did["thrown out"] += bool(self.left_s)
                    await asyncio.sleep(BREATH_S)

        await asyncio.gather(*(keep_on() for _ in range(size)))

    def caller(self) -> Caller:
        return Caller(self.target, self.source)

    async def socket(self, path: str = "/v1/stream", *, small: bool = False) -> RawSocket:
        opened = await RawSocket.open(self.target, path, source=self.source, small=small)
        self.did["connected"] += 1
        return opened

    async def session(self, *, small: bool = False, **asked: Any) -> tuple[RawSocket, dict[str, Any]]:
        """A socket and what it was told on becoming live. Raises `ConnectionError` where it did not."""
        socket = await self.socket(small=small)
        try:
            socket.send(
                json.dumps(
                    {"type": "start", "version": 1, "prompt": "sea", "size": "16x16", "fps": 4.0, **asked}
                )
            )
            heard = await asyncio.wait_for(hear(socket, "live", "waiting", "error"), PATIENCE_S)
            if heard["type"] == "error":
                self.did["refused"] += 1
                raise ConnectionRefusedError(heard.get("message", ""))
        except BaseException:
            socket.vanish()
            raise
        self.did["sessions"] += 1
        return socket, heard

    async def open_by_rest(self, caller: Caller, **asked: Any) -> str:
        """A session's id. Raises `ConnectionError` where there is none."""
        body = {"prompt": "sea", "size": "16x16", "fps": 4.0, "unattended": "run", **asked}
        answer = await caller.ask(post("/v1/sessions", body))
        if answer is None or answer.status != 201:
            self.did["refused"] += 1
            raise ConnectionRefusedError("no session")
        self.did["sessions"] += 1
        return answer.field("session")

    async def end_by_rest(self, caller: Caller, session: str) -> None:
        with suppress(OSError, asyncio.TimeoutError):
            await caller.ask(Request(method="DELETE", path=f"/v1/sessions/{session}"))

    async def read_on(self, socket: RawSocket) -> None:
        """Read and forget, until it is closed."""
        while await socket.hear() is not None:
            self.did["heard"] += 1


async def hear(socket: RawSocket, *kinds: str) -> dict[str, Any]:
    """The next text message of one of these kinds. Raises `ConnectionError` at the end."""
    while (heard := await socket.hear()) is not None:
        opcode, payload = heard
        message = json.loads(payload) if opcode == TEXT else {}
        if message.get("type") in kinds:
            return dict(message)
    raise ConnectionError(f"closed with {socket.close_code}")
