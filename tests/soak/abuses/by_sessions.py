"""Abuse by people who are let in: sessions that are opened and left, asked too much, saved without end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.soak.abuses.frames import RawSocket
from tests.soak.abuses.http import Request
from tests.soak.abuses.scene import Scene

FLOOD = 40
"""Messages at once."""


async def sessions_abandoned(scene: Scene) -> None:
    """Opened, and never seen again."""

    async def leave() -> None:
        socket, _ = await scene.session(unattended=scene.chance.choice(("pause", "run")))
        socket.vanish()

    await scene.crowd(4, leave)


async def lines_left(scene: Scene) -> None:
    """Sessions that can hardly fit stand in line; those before them stop."""

    async def queue() -> None:
        first, _ = await scene.session(size="64x64", fps=scene.chance.choice((1.0, 8.0)), wait=True)
        try:
            second, _ = await scene.session(fps=scene.chance.choice((120.0, 240.0)), wait=True)
            try:
                scene.did["waited"] += 1
                first.send(json.dumps({"type": "stop"}))
                await asyncio.sleep(scene.chance.uniform(0, 0.5))
                second.send(json.dumps({"type": "stop"}))
                await first.drain()
                await second.drain()
                await asyncio.sleep(0.1)
            finally:
                second.vanish()
        finally:
            first.vanish()

    await scene.crowd(3, queue)


async def huge_and_slow(scene: Scene) -> None:
    """The largest pictures there are, at rates that promise next to nothing."""

    async def ask() -> None:
        size = scene.chance.choice(("1536x1536", "1024x1024", "768x768"))
        fps = scene.chance.choice((0.1, 0.2, 1.0))
        socket, _ = await scene.session(size=size, fps=fps, wait=True)
        try:
            await asyncio.sleep(2)
        finally:
            socket.vanish()

    await scene.crowd(2, ask)


async def save_floods(scene: Scene) -> None:
    await _flood(scene, lambda: {"type": "save"})


async def recording_floods(scene: Scene) -> None:
    await _flood(scene, lambda: {"type": "record", "on": scene.chance.random() < 0.5}, fps=24.0)


async def control_floods(scene: Scene) -> None:
    """Every control there is, as fast as it goes."""
    controls: tuple[dict[str, Any], ...] = (
        {"type": "cut"}, {"type": "pause"}, {"type": "resume"}, {"type": "seed", "seed": 3}, {"type": "window", "window": 3},
        {"type": "prompt", "prompt": "storm", "mode": "recompute"}, {"type": "kv_bias", "kv_bias": 0.5},
    )  # fmt: skip
    await _flood(scene, lambda: {"type": "control", "control": scene.chance.choice(controls)}, fps=8.0)


async def dear_changes(scene: Scene) -> None:
    """Mixes with extreme weights, many steps, long windows: a session that becomes dearer than it was when it
    was let in."""

    def control() -> dict[str, Any]:
        chance = scene.chance
        weights = (1e308, 5e-324, 1.0, 1e-300)
        prompts = [
            {"text": f"sea {number}", "weight": chance.choice(weights)}
            for number in range(chance.randint(1, 8))
        ]
        steps = sorted((chance.uniform(1, 1000) for _ in range(chance.randint(1, 16))), reverse=True)
        wanted = (
            {
                "type": "prompt",
                "prompts": prompts,
                "mode": chance.choice(("blend", "recompute")),
                "chunks": 2,
            },
            {"type": "steps", "steps": steps},
            {"type": "window", "window": chance.choice((1, 24, 120, 1024)), "sink": chance.choice((0, 1, 6))},
        )
        return {"type": "control", "control": chance.choice(wanted)}

    await _flood(scene, control, fps=8.0)


async def view_links(scene: Scene) -> None:
    """As many viewers as one session may have, and as many that guess."""
    socket, live = await scene.session(fps=8.0)
    reading = asyncio.ensure_future(scene.read_on(socket))

    async def view() -> None:
        name = live.get("view", "") if scene.chance.random() < 0.7 else scene.chance.randbytes(16).hex()
        watching = await scene.socket()
        try:
            watching.send(json.dumps({"type": "view", "version": 1, "view": name}))
            await asyncio.wait_for(scene.read_on(watching), scene.chance.uniform(0.5, 5))
        finally:
            watching.vanish()

    try:
        await scene.crowd(80, view)
    finally:
        reading.cancel()
        socket.vanish()


async def rest_sessions(scene: Scene) -> None:
    """As many sessions as one may have, by REST, none of them watched."""
    opened: list[str] = []

    async def ask() -> None:
        opened.append(await scene.open_by_rest(caller, fps=1.0, unattended="pause", wait=True))
        await caller.ask(Request(path=f"/v1/sessions/{opened[-1]}"))

    with scene.caller() as caller:
        await scene.crowd(1, ask)


async def _flood(scene: Scene, message: Callable[[], dict[str, Any]], **asked: Any) -> None:
    """Sessions of its own, and the same kind of message over and over to each."""

    async def flood() -> None:
        socket, _ = await scene.session(**asked)
        reading = asyncio.ensure_future(scene.read_on(socket))
        try:
            await _pour(scene, socket, reading, message)
        finally:
            reading.cancel()
            socket.vanish()

    await scene.crowd(3, flood)


async def _pour(
    scene: Scene, socket: RawSocket, reading: asyncio.Future[None], message: Callable[[], dict[str, Any]]
) -> None:
    while not reading.done():
        for _ in range(FLOOD):
            socket.send(json.dumps(message()))
        await socket.drain()
        scene.did["messages"] += FLOOD
        await asyncio.sleep(scene.chance.uniform(0.1, 1))
