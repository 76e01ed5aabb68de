"""Clients of SGLang's realtime video: MessagePack over one WebSocket, as its page and its Python clients
speak it.

What they send and read is in `sglang.json`. The page packs with a packer of its own (`page_msgpack.py`); the
Python clients use msgspec, read raw frames alone and give up at the first error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from millstream.video.picture import png
from tests.server.clients import page_msgpack
from tests.server.clients.facts import differences, strangers

REFERENCE = png(np.full((64, 48, 3), 90, np.uint8))

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
        frames = []
        kinds = set()
        count = 0
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


@dataclass
class SGLangPage:
    """Their page: what it shows, and when it cuts over to an event."""

    socket: ClientConnection
    next_event_id: int = 1
    status: str = "idle"
    history: list[str] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    """RGB, of raw batches; encoded pictures as they came."""
    stats: list[dict[str, Any]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    cut_over_to: int = 0

    async def init(self, **changes: Any) -> None:
        """With the page's own fields, in its order."""
        fields = {
            "type": "init", "model": "wan-tiny", "prompt": "sea", "size": "48x64", "fps": 16, "num_frames": 9, "seed": 424242,
            "num_inference_steps": 4, "guidance_scale": 1, "first_frame": REFERENCE,
            "realtime_output_format": "webp", "realtime_output_pacing": True, "output_compression": 95,
        } | changes  # fmt: skip
        await self._send("init", {name: value for name, value in fields.items() if value is not None})

    async def event(self, kind: str, payload: Any) -> int:
        event_id = self.next_event_id
        self.next_event_id += 1
        await self._send("event", {"type": "event", "kind": kind, "payload": payload, "event_id": event_id})
        return event_id

    async def chunk(self) -> dict[str, Any]:
        """Up to the next statistics."""
        while True:
            data = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
            assert isinstance(data, bytes), "messages are MessagePack"
            message: dict[str, Any] = page_msgpack.unpack(data)
            self.differences += differences("sglang", message["type"], message)
            match message["type"]:
                case "error":
                    self.status = message["content"]
                    self.history.append(f"server error: {self.status}")
                case "frame_batch":
                    self._show(message)
                case "chunk_stats":
                    self.stats.append(message)
                    return message

    def _show(self, batch: dict[str, Any]) -> None:
        payload = batch["payload"]
        self.status = "Live"
        if batch["content_type"] == "application/x-raw-rgb":
            size = batch["bytes_per_frame"]
            height = batch["height"]
            width = batch["width"]
            for n in range(batch["num_frames"]):
                frame = payload[n * size : (n + 1) * size]
                np.frombuffer(frame, np.uint8).reshape(height, width, batch["channels"])
                self.frames.append(frame)
        else:
            at = 0
            for length in batch["payload_lengths"]:
                self.frames.append(payload[at : at + length])
                at += length
        self.cut_over_to = max(self.cut_over_to, batch.get("event_id", 0))

    async def _send(self, kind: str, message: dict[str, Any]) -> None:
        assert strangers("sglang", kind, message) == []
        await self.socket.send(page_msgpack.pack(message))


@dataclass
class SGLangCollector:
    """Their consistency harness: raw frames of so many chunks, events between them, no error."""

    socket: ClientConnection
    frames: list[Any] = field(default_factory=list)
    stats: list[dict[str, Any]] = field(default_factory=list)

    async def collect(self, init: dict[str, Any], num_chunks: int, events: dict[int, dict[str, Any]]) -> None:
        assert strangers("sglang", "init", init) == []
        await self.socket.send(msgspec.msgpack.encode(init))
        received: set[int] = set()
        while len(received) < num_chunks or len(self.stats) < len(received):
            data = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
            assert isinstance(data, bytes), "messages are MessagePack"
            message = msgspec.msgpack.decode(data)
            assert differences("sglang", message["type"], message) == []
            assert message["type"] != "error", f"it gives up at {message['content']}"
            if message["type"] == "chunk_stats":
                self.stats.append(message)
                continue
            self.frames += self._decoded(message)
            if message["is_final_frame_batch"]:
                received.add(message["chunk_index"])
                event = events.get(message["chunk_index"])
                if event is not None:
                    await self.socket.send(msgspec.msgpack.encode({"type": "event", **event}))

    def _decoded(self, batch: dict[str, Any]) -> list[Any]:
        assert batch["content_type"] == "application/x-raw-rgb", "it reads raw frames alone"
        assert len(batch["payload"]) == batch["num_frames"] * batch["bytes_per_frame"]
        shape = (batch["num_frames"], batch["height"], batch["width"], batch["channels"])
        return list(np.frombuffer(batch["payload"], np.uint8).reshape(shape))


@asynccontextmanager
async def sglang_page(url: str, **options: Any) -> AsyncIterator[SGLangPage]:
    async with connect(f"{url}/v1/realtime_video/generate", max_size=None, **options) as socket:
        yield SGLangPage(socket)


@asynccontextmanager
async def sglang_collector(url: str) -> AsyncIterator[SGLangCollector]:
    async with connect(f"{url}/v1/realtime_video/generate", max_size=None, ping_interval=None) as socket:
        yield SGLangCollector(socket)


@asynccontextmanager
async def sglang_client(url: str, **options: Any) -> AsyncIterator[SGLangClient]:
    async with connect(f"{url}/v1/realtime_video/generate", max_size=None, **options) as socket:
        yield SGLangClient(socket)
