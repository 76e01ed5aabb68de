"""A server without a model that speaks as much of docs/protocol.md as the load harness needs, and misbehaves
on request.

Chunks are sent as a paced server would: never more than the lead ahead of the viewer's clock, none while
paused or unwatched.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import websockets
from websockets.asyncio.server import Request, Response, ServerConnection, serve

FRAMES = 12
LEAD = 2
DEFAULTS = dict(size="1x10", fps=24.0, steps=[1000.0], window=3, sink=0, lead_s=1.0, noise_scale=0.7, seed=0)


@dataclass
class SmallSession:
    """One session."""

    name: str
    fps: float
    lead_s: float
    index: int = 0
    media_s: float = 0.0
    dry_at: float = 0.0
    """When a viewer has played all that was sent."""
    still_since: float | None = None
    paused: bool = False
    total_ms: float = 0.0
    receipts: list[dict[str, Any]] = field(default_factory=list)
    sending: asyncio.Task[None] | None = None
    """To whoever came last."""

    def stand_still(self) -> None:
        self.still_since = self.still_since or time.monotonic()

    def go_on(self) -> None:
        if self.still_since is not None:
            self.dry_at += time.monotonic() - self.still_since
            self.still_since = None


@dataclass
class SmallServer:
    places: int = 8
    capacity_fps: float = math.inf
    """Frames a second for all sessions together."""
    make_s: float = 0.0
    """What a chunk takes."""
    idle_s: float = 0.0
    """What is wasted after each."""
    stall_at: int | None = None
    """Chunk that comes `stall_s` too late."""
    stall_s: float = 0.0
    forgetful: bool = False
    """Whether controls never apply."""
    skipped: int | None = None
    """Chunk that is never sent."""
    port: int = 0
    live_sessions: dict[str, SmallSession] = field(default_factory=dict)
    opened: int = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    async def connection(self, socket: ServerConnection) -> None:
        self.opened += 1
        live_session: SmallSession | None = None
        sending: asyncio.Task[None] | None = None
        await say(
            socket,
            "hello",
            version=1,
            model="small",
            formats=["raw"],
            defaults=DEFAULTS,
            limits={},
            examples=["a", "b"],
        )
        try:
            async for text in socket:
                try:
                    message = json.loads(text)
                    kind = message["type"]
                except (ValueError, TypeError, KeyError):
                    kind = ""
                if kind in ("start", "attach") and live_session is None:
                    live_session = self.enter(message)
                    if live_session is None:
                        await say(
                            socket, "error", code="refused", message="all places are taken", control_id=""
                        )
                        continue
                    await say(
                        socket,
                        "live",
                        session=live_session.name,
                        view="v",
                        format="raw",
                        config={},
                        paused=False,
                        note="",
                    )
                    live_session.go_on()
                    if live_session.sending is not None:
                        live_session.sending.cancel()  # who comes back may be quicker than the news that they had gone
                    sending = live_session.sending = asyncio.create_task(self.send(socket, live_session))
                elif kind == "control" and live_session is not None and isinstance(message["control"], dict):
                    await self.steer(socket, live_session, message["control"])
                elif kind == "stop" and live_session is not None:
                    await say(socket, "ended", cause="closed", reason="as asked")
                    del self.live_sessions[live_session.name]
                    return
                else:
                    await say(socket, "error", code="bad_message", message="what?", control_id="")
        finally:
            if sending is not None and live_session is not None:
                sending.cancel()
                if live_session.sending is sending:
                    live_session.stand_still()

    def enter(self, message: dict[str, Any]) -> SmallSession | None:
        if message["type"] == "attach":
            return self.live_sessions[message["session"]]
        asked = sum(live_session.fps for live_session in self.live_sessions.values()) + message["fps"]
        if len(self.live_sessions) >= self.places or asked > self.capacity_fps:
            return None
        lead_s = message.get("lead_s") or LEAD * FRAMES / message["fps"]
        live_session = SmallSession(name=f"s{self.opened}", fps=message["fps"], lead_s=lead_s)
        self.live_sessions[live_session.name] = live_session
        return live_session

    async def steer(
        self, socket: ServerConnection, live_session: SmallSession, control: dict[str, Any]
    ) -> None:
        receipt = {"control_id": control["id"], "chunk_index": live_session.index}
        await say(socket, "receipt", state="queued", **receipt)
        if control["type"] == "pause":
            live_session.paused = True
            live_session.stand_still()
            await say(socket, "receipt", state="applied", **receipt)
        elif control["type"] == "resume":
            live_session.paused = False
            live_session.go_on()
        elif not self.forgetful:
            live_session.receipts.append({**receipt, "state": "applied"})

    async def send(self, socket: ServerConnection, live_session: SmallSession) -> None:
        with suppress(websockets.ConnectionClosed):
            while True:
                chunk_s = FRAMES / live_session.fps
                ahead_s = live_session.dry_at - time.monotonic()
                if live_session.paused or ahead_s + chunk_s > live_session.lead_s:
                    await asyncio.sleep(0.002)
                    continue
                await self.make(live_session)
                if live_session.index == self.stall_at:
                    await asyncio.sleep(max(0.0, ahead_s) + self.stall_s)
                if live_session.index != self.skipped:
                    await socket.send(picture(live_session))
                live_session.receipts = []
                live_session.index += 1
                live_session.media_s += chunk_s
                live_session.dry_at = max(live_session.dry_at, time.monotonic()) + chunk_s

    async def make(self, live_session: SmallSession) -> None:
        begun = time.monotonic()
        await asyncio.sleep(self.make_s)
        live_session.total_ms = 1000 * (time.monotonic() - begun)
        await asyncio.sleep(self.idle_s)

    def page(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/readyz":
            return connection.respond(HTTPStatus.OK, "ready\n")
        if request.path == "/metrics":
            return connection.respond(HTTPStatus.OK, "# HELP x\nprocess_resident_memory_bytes 1.5e+08\n")
        return None


async def say(socket: ServerConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


def picture(live_session: SmallSession) -> bytes:
    sizes = [30] * FRAMES
    header = json.dumps(
        {
            "type": "chunk",
            "index": live_session.index,
            "epoch": 0,
            "media_s": live_session.media_s,
            "fps": live_session.fps,
            "frames": FRAMES,
            "format": "raw",
            "sizes": sizes,
            "prompts": [],
            "unknown": [],
            "receipts": live_session.receipts,
            "total_ms": live_session.total_ms,
            "phases_ms": {},
            "late_s": 0.0,
            "dropped": 0,
        }
    ).encode()
    return struct.pack("<I", len(header)) + header + bytes(sum(sizes))


@asynccontextmanager
async def small_server(**options: Any) -> AsyncIterator[SmallServer]:
    server = SmallServer(**options)
    async with serve(server.connection, "127.0.0.1", 0, process_request=server.page) as listening:
        server.port = next(iter(listening.sockets)).getsockname()[1]
        yield server
