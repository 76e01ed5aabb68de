"""Abuse over HTTP: requests that never end, that come all at once, or that carry what they should not."""

from __future__ import annotations

import asyncio
import json
import struct

from tests.soak.abuses.http import Request, post
from tests.soak.abuses.mutations import mutate_bytes
from tests.soak.abuses.scene import Scene, hear

DRIP_S = 0.5
PIECE = bytes(2**18)


async def slow_headers(scene: Scene) -> None:
    """A request's head, a line at a time, for ever."""

    async def drip() -> None:
        reader, writer = await scene.target.dial(scene.source)
        try:
            writer.write(f"GET / HTTP/1.1\r\nHost: {scene.target.name}\r\n".encode())
            while not reader.at_eof():
                writer.write(b"X-More: to come\r\n")
                await writer.drain()
                scene.did["lines"] += 1
                await asyncio.sleep(DRIP_S)
        finally:
            writer.transport.abort()

    await scene.crowd(100, drip)


async def slow_bodies(scene: Scene) -> None:
    """A body of which a byte comes now and then."""

    async def drip() -> None:
        reader, writer = await scene.target.dial(scene.source)
        head = Request(
            method="POST",
            path=scene.chance.choice(("/v1/sessions", "/v1/snapshots")),
            headers=(("Content-Length", "99999"),),
        )
        try:
            writer.write(head.encode(scene.target.name))
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                scene.did["bytes"] += 1
                await asyncio.sleep(DRIP_S)
        finally:
            writer.transport.abort()

    await scene.crowd(100, drip)


async def pipelined_requests(scene: Scene) -> None:
    """Hundreds of requests at once on one connection, answers read late or never."""
    request = Request(path="/openapi.json").encode(scene.target.name)

    async def flood() -> None:
        reader, writer = await scene.target.dial(scene.source, small=True)
        try:
            for _ in range(20):
                writer.write(request * 50)
                await asyncio.wait_for(writer.drain(), 5)
                scene.did["requests"] += 50
            await reader.read(2**16)
        finally:
            writer.transport.abort()

    await scene.crowd(4, flood)


async def wrong_keys(scene: Scene) -> None:
    """Keys, origins and names that are not the right ones, as fast as they go."""

    async def guess() -> None:
        with scene.caller() as caller:
            for _ in range(200):
                name, value = scene.chance.choice(
                    (
                        ("Authorization", f"Bearer {scene.chance.randbytes(9).hex()}"),
                        ("Origin", "http://evil.example"),
                        ("Host", "evil.example"),
                    )
                )
                answer = await caller.ask(Request(path="/v1/models", headers=((name, value),)))
                scene.did["none" if answer is None else str(answer.status)] += 1

    await scene.crowd(8, guess)


async def uploads_cut_off(scene: Scene) -> None:
    """Large snapshots that break off, or are no snapshots."""

    async def upload() -> None:
        _, writer = await scene.target.dial(scene.source)
        try:
            head = Request(method="POST", path="/v1/snapshots", headers=(("Content-Length", str(2**30)),))
            writer.write(head.encode(scene.target.name))
            for _ in range(scene.chance.randint(1, 32)):
                writer.write(PIECE)
                await writer.drain()
                scene.did["pieces"] += 1
        finally:
            writer.transport.abort()

    await scene.crowd(6, upload)


async def growing_journals(scene: Scene) -> None:
    """A live session's journal, fetched again and again while it is written."""

    async def fetch() -> None:
        with scene.caller() as mine:
            for _ in range(100):
                answer = await mine.ask(Request(path=f"/v1/sessions/{session}/journal"))
                scene.did["cut off" if answer is None else str(answer.status)] += 1

    with scene.caller() as caller:
        session = await scene.open_by_rest(caller, fps=24.0)
        try:
            await scene.crowd(4, fetch)
        finally:
            await scene.end_by_rest(caller, session)


async def tampered_snapshots(scene: Scene) -> None:
    """A session is saved, fetched, tampered with, brought back and gone on with."""
    socket, _ = await scene.session()
    with socket, scene.caller() as caller:
        socket.send(json.dumps({"type": "save"}))
        saved = await asyncio.wait_for(hear(socket, "saved", "error"), 30)
        answer = await caller.ask(Request(path=f"/v1/snapshots/{saved.get('snapshot', '')}"))
        whole = b"" if answer is None else answer.body

    async def restore() -> None:
        with scene.caller() as mine:
            kept = await mine.ask(post("/v1/snapshots", _tampered(whole, scene)))
            name = "" if kept is None else kept.field("name")
            scene.did["none" if kept is None else str(kept.status)] += 1
            if name:
                opened = await mine.ask(Request(method="POST", path=f"/v1/snapshots/{name}/sessions"))
                scene.did["restored" if opened is not None and opened.status == 201 else "not restored"] += 1
                if opened is not None and opened.status == 201 and scene.chance.random() < 0.5:
                    await scene.end_by_rest(mine, opened.field("session"))

    await scene.crowd(3, restore)


def _tampered(whole: bytes, scene: Scene) -> bytes:
    chance = scene.chance
    size = 8 + (struct.unpack_from("<Q", whole)[0] if len(whole) > 8 else 0)
    match chance.randrange(5):
        case 0:
            return whole
        case 1:
            return whole[:8] + mutate_bytes(whole[8:size], chance) + whole[size:]
        case 2:
            nested = b'{"__metadata__":' * 20_000
            return struct.pack("<Q", len(nested)) + nested
        case 3:
            return struct.pack("<Q", chance.choice((0, 2**40, 2**64 - 1))) + whole[8:]
        case _:
            return whole[: chance.randrange(len(whole) + 1)]
