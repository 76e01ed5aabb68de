"""Abuse below HTTP: connections that say nothing, or nothing that is a request."""

from __future__ import annotations

import asyncio

from tests.soak.abuses.scene import Scene

NUM_IDLE = 640
"""More than one address may have."""
HELD_S = 2.0
GARBAGE = b"\x16\x03\x01 no request at all\r\n\r\n"


async def idle_connections(scene: Scene) -> None:
    """Hundreds from one address, each made again as soon as it is closed."""

    async def hold() -> None:
        reader, writer = await scene.target.dial(scene.source)
        scene.did["connected"] += 1
        try:
            answer = await reader.read(2**16)
            scene.did["refused" if answer else "closed"] += 1
            await asyncio.sleep(HELD_S)
        finally:
            writer.transport.abort()

    await scene.crowd(NUM_IDLE, hold)


async def connections_made_and_dropped(scene: Scene) -> None:
    """As fast as they go, half of them with a reset."""

    async def knock() -> None:
        _, writer = await scene.target.dial(scene.source)
        scene.did["connected"] += 1
        if scene.chance.random() < 0.5:
            writer.transport.abort()
        writer.close()

    await scene.crowd(16, knock)


async def garbage_for_requests(scene: Scene) -> None:
    """Send non-HTTP bytes, such as a TLS handshake, on many connections: a naive server logs each."""

    async def mumble() -> None:
        reader, writer = await scene.target.dial(scene.source)
        try:
            writer.write(GARBAGE if scene.chance.random() < 0.5 else scene.chance.randbytes(64) + b"\r\n\r\n")
            await asyncio.wait_for(reader.read(2**16), HELD_S)
            scene.did["answered"] += 1
        finally:
            writer.transport.abort()

    await scene.crowd(16, mumble)
