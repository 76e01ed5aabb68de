"""Abuse below the message: WebSocket frames that say nothing, are never read or never end."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import suppress

from tests.soak.abuses.frames import BINARY, CONTINUATION, PING, TEXT, frame
from tests.soak.abuses.pictures import commented_png, lying_png, png_bomb
from tests.soak.abuses.scene import Scene

MANY = 5000


async def empty_continuations(scene: Scene) -> None:
    """A message in fragments, none of which holds anything."""
    burst = frame(b"", CONTINUATION, fin=False) * MANY

    async def flood() -> None:
        socket = await scene.socket()
        try:
            socket.writer.write(frame(b"", TEXT, fin=False))
            while True:
                socket.writer.write(burst)
                await socket.drain()
                scene.did["frames"] += MANY
        finally:
            socket.vanish()

    await scene.crowd(2, flood)


async def unread_pings(scene: Scene) -> None:
    """Pings whose answers nobody reads: they have to wait somewhere."""
    burst = frame(bytes(125), PING) * 500

    async def flood() -> None:
        socket = await scene.socket(small=True)
        try:
            while True:
                socket.writer.write(burst)
                await socket.drain()
                scene.did["pings"] += 500
        finally:
            socket.vanish()

    await scene.crowd(8, flood)


async def ping_floods(scene: Scene) -> None:
    """Pings as fast as they are answered."""
    burst = frame(b"x", PING) * 500

    async def flood() -> None:
        socket = await scene.socket()
        reading = asyncio.ensure_future(scene.read_on(socket))
        try:
            while not reading.done():
                socket.writer.write(burst)
                await socket.drain()
                scene.did["pings"] += 500
        finally:
            reading.cancel()
            socket.vanish()

    await scene.crowd(4, flood)


async def oversize_frames(scene: Scene) -> None:
    """Frames that announce more than there is room for, or bring it."""

    async def shove() -> None:
        socket = await scene.socket()
        try:
            match scene.chance.randrange(3):
                case 0:
                    socket.writer.write(frame(bytes(1000), BINARY, says_bytes=2**62))
                case 1:
                    for _ in range(40):
                        socket.writer.write(frame(bytes(2**18), BINARY, fin=False))
                        await socket.drain()
                case _:
                    socket.writer.write(frame(b" " * (7 * 2**20), TEXT))
            await socket.drain()
            scene.did["frames"] += 1
            await scene.read_on(socket)
        finally:
            socket.vanish()

    await scene.crowd(6, shove)


async def slow_readers(scene: Scene) -> None:
    """Sessions with large pictures that nobody takes."""

    async def doze() -> None:
        socket, _ = await scene.session(small=True, size="64x64", fps=8.0, formats=["raw"], lead_s=60.0)
        try:
            await asyncio.sleep(scene.left_s)
        finally:
            socket.vanish()

    await scene.crowd(4, doze)


async def picture_bombs(scene: Scene) -> None:
    """Camera frames that are small until they are opened."""
    bombs = (png_bomb(), lying_png(), commented_png())

    async def show() -> None:
        socket, _ = await scene.session(input=True, fps=2.0)
        reading = asyncio.ensure_future(scene.read_on(socket))
        try:
            while not reading.done():
                socket.send(scene.chance.choice(bombs))
                await socket.drain()
                scene.did["frames"] += 1
                await asyncio.sleep(0.01)
        finally:
            reading.cancel()
            with suppress(OSError):
                socket.send(json.dumps({"type": "stop"}))
            socket.vanish()

    await scene.crowd(3, show)


async def connects_and_disconnects(scene: Scene) -> None:
    """In, and out again at once; some before they have said hello."""

    async def knock() -> None:
        if scene.chance.random() < 0.5:
            _, writer = await scene.target.dial(scene.source)
            writer.write(struct.pack("!Q", 0)[: scene.chance.randrange(8)])
            writer.transport.abort()
        else:
            (
                await scene.socket(
                    scene.chance.choice(("/v1/stream", "/v1/realtime/video", "/session/x", "/nowhere"))
                )
            ).vanish()
        scene.did["knocks"] += 1

    await scene.crowd(8, knock)
