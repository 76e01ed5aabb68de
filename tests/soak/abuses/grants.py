"""Requests of a newcomer that has done nothing wrong: which are granted before and after an abuse."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

from millstream.core.errors import ProtocolBroken
from millstream.load.saturate import count_admitted
from tests.soak.abuses.http import Request, post
from tests.soak.abuses.scene import Scene, hear
from tests.soak.abuses.signalling import offer
from tests.soak.abuses.target import Target

SESSIONS = 3
"""Sessions that are asked for together."""
AFTER_S = 45.0
"""Seconds in which leftovers of an abuse run into their time limits; a request refused for longer counts as
refused for good."""
ANSWER_S = 20.0
NEWCOMER = "127.0.0.1"
FPS = 4.0
"""Frame rate that a newcomer asks for: several such sessions must fit together on a slow machine."""


@dataclass(slots=True)
class Newcomer:
    target: Target
    saved: str = ""
    """A snapshot of theirs from before."""
    _chance: random.Random = field(default_factory=lambda: random.Random(0))

    async def asks(self) -> dict[str, bool]:
        """Everything once; what was granted."""
        return {
            "sessions": await self._sessions(),
            "kept": not self.saved or await self._fetch(self.saved) is not None,
            "save, fetch, upload, restore": await self._granted(self._save()),
            "recording": await self._granted(self._record()),
            "webrtc": await self._granted(self._call()),
        }

    async def asks_until(self, before: dict[str, bool]) -> tuple[list[str], float]:
        """Return the requests still refused after `AFTER_S`, and the seconds until all were granted again."""
        begun = time.monotonic()
        while True:
            now = await self.asks()
            refused = [name for name, granted in before.items() if granted and not now[name]]
            passed = time.monotonic() - begun
            if not refused or passed > AFTER_S:
                return refused, passed
            await asyncio.sleep(2.0)

    async def _sessions(self) -> bool:
        try:
            return await count_admitted(self.target.url, sessions=SESSIONS, fps=FPS) == SESSIONS
        except ProtocolBroken:
            return False

    async def _granted(self, asking: Awaitable[bool]) -> bool:
        try:
            return await asyncio.wait_for(asking, ANSWER_S)
        except (OSError, asyncio.TimeoutError):
            return False

    def _scene(self) -> Scene:
        return Scene(self.target, self._chance, time.monotonic() + ANSWER_S, source=NEWCOMER)

    async def _fetch(self, name: str) -> bytes | None:
        with self._scene().caller() as caller:
            try:
                answer = await caller.ask(Request(path=f"/v1/snapshots/{name}"))
            except (OSError, asyncio.TimeoutError):
                return None
        return answer.body if answer is not None and answer.status == 200 else None

    async def _save(self) -> bool:
        scene = self._scene()
        socket, _ = await scene.session(fps=FPS)
        caller = scene.caller()
        try:
            socket.send(json.dumps({"type": "save"}))
            saved = await hear(socket, "saved", "error")
            name = str(saved.get("snapshot", ""))
            whole = await self._fetch(name) if name else None
            kept = None if whole is None else await caller.ask(post("/v1/snapshots", whole))
            if kept is None or kept.status != 201:
                return False
            opened = await caller.ask(
                Request(method="POST", path=f"/v1/snapshots/{kept.field('name')}/sessions")
            )
            self.saved = self.saved or name
            if opened is not None and opened.status == 201:
                await scene.end_by_rest(caller, opened.field("session"))
                return True
            return False
        finally:
            socket.send(json.dumps({"type": "stop"}))
            await asyncio.sleep(0.1)
            socket.vanish()
            caller.hang_up()

    async def _record(self) -> bool:
        socket, _ = await self._scene().session(fps=FPS)
        try:
            socket.send(json.dumps({"type": "record", "on": True}))
            begun = await hear(socket, "recording", "error")
            socket.send(json.dumps({"type": "stop"}))
            await hear(socket, "ended")
        finally:
            socket.vanish()
        return str(begun["type"]) == "recording"

    async def _call(self) -> bool:
        scene = self._scene()
        with scene.caller() as caller:
            start = {"version": 1, "prompt": "sea", "size": "16x16", "fps": FPS}
            answer = await caller.ask(
                post("/v1/webrtc/offer", {"sdp": offer(), "type": "offer", "start": start})
            )
            if answer is None or answer.status != 200:
                return False
            await scene.end_by_rest(caller, answer.field("session"))
            return True
