"""A client of SGLang's realtime video, written from its public description: MessagePack over one WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

PATIENCE_S = 30.0


@dataclass
class Chunk:
    stats: dict[str, Any]
    frames: list[bytes]
    content_types: set[str]
    num_frames: int


@dataclass
class SGLangClient:
    socket: ClientConnection
    errors: list[dict[str, Any]] = field(default_factory=list)

    async def init(self, prompt: str, **options: Any) -> None:
        await self.send({"type": "init", "prompt": prompt, **options})

    async def event(self, kind: str, payload: Any, event_id: int | None = None) -> None:
        await self.send({"type": "event", "kind": kind, "payload": payload, "event_id": event_id})

    async def send(self, message: Any) -> None:
        await self.socket.send(msgspec.msgpack.encode(message))

    async def receive(self) -> dict[str, Any]:
        data = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
        assert isinstance(data, bytes), "messages are MessagePack"
        message: dict[str, Any] = msgspec.msgpack.decode(data)
        return message

    async def chunk(self) -> Chunk:
        """All frame batches up to the next statistics; errors on the way are kept."""
        frames, kinds, count = [], set(), 0
        while True:
            message = await self.receive()
            match message["type"]:
                case "frame_batch":
                    frames.append(message["payload"])
                    kinds.add(message["content_type"])
                    count += message["num_frames"]
                case "chunk_stats":
                    return Chunk(message, frames, kinds, count)
                case "error":
                    self.errors.append(message)
                case other:
                    raise AssertionError(f"an unexpected message: {other}")

    async def error(self) -> dict[str, Any]:
        """The next error, whatever else comes before it."""
        while not self.errors:
            message = await self.receive()
            if message["type"] == "error":
                self.errors.append(message)
        return self.errors.pop(0)


@asynccontextmanager
async def sglang_client(url: str, **options: Any) -> AsyncIterator[SGLangClient]:
    async with connect(f"{url}/v1/realtime_video/generate", max_size=None, **options) as socket:
        yield SGLangClient(socket)
