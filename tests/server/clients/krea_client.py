"""Clients of Krea's realtime video: its page in miniature, and one that says anything. MessagePack out,
pictures back.

What they send and read is in `krea.json`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from tests.server.clients.facts import differences, strangers

PATIENCE_S = 30.0


@dataclass
class KreaClient:
    socket: ClientConnection
    pictures: list[bytes] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, **fields: Any) -> None:
        await self.socket.send(msgspec.msgpack.encode(fields))

    async def receive(self) -> bytes | dict[str, Any]:
        data = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
        if isinstance(data, bytes):
            self.pictures.append(data)
            return data
        self.said.append(json.loads(data))
        return self.said[-1]

    async def picture(self) -> bytes:
        while not isinstance(data := await self.receive(), bytes):
            pass
        return data

    async def hear(self, **fields: Any) -> dict[str, Any]:
        """The next text with these fields; those given as ... may be anything."""
        while True:
            data = await self.receive()
            if isinstance(data, dict) and all(n in data and v in (..., data[n]) for n, v in fields.items()):
                return data


@dataclass
class KreaPage:
    """Their page: it sends its parameters when it hears `ready`, buffers pictures and plays them itself."""

    socket: ClientConnection
    session_id: str
    parameters: dict[str, Any]
    status: list[str] = field(default_factory=list)
    """All that was ever shown there."""
    buffer: list[bytes] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    completed: bool = False

    async def hear(self) -> None:
        """One message, as the page takes it."""
        data = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
        if isinstance(data, bytes):
            self.buffer.append(data)
            return
        message = json.loads(data)
        if message.get("status") == "ready":
            self._check("ready", message)
            await self._send("parameters", self.parameters)
        elif message.get("status") == "completed" or message.get("session_id"):
            self._check("completed", message)
            self.session_id = message["session_id"]
            self.completed = True
        elif message.get("error"):
            self._check("error", message)
            self.status.append(f"Server error: {message['error']}")
        else:
            self._check("status", message)
            self.status.append(message["status"])

    async def until_pictures(self, count: int) -> None:
        while len(self.buffer) < count:
            await self.hear()

    async def change_prompt(self, prompt: str, interp_steps: int = 4) -> None:
        await self._send("prompt", {"prompt": prompt, "interp_steps": interp_steps})

    async def show_camera(self, jpeg: bytes, strength: float) -> None:
        text = base64.b64encode(jpeg).decode()
        await self._send(
            "picture", {"image": text, "timestamp": round(time.time() * 1000), "strength": strength}
        )

    def _check(self, kind: str, message: dict[str, Any]) -> None:
        self.differences += differences("krea", kind, message)

    async def _send(self, kind: str, message: dict[str, Any]) -> None:
        assert strangers("krea", kind, message) == []
        await self.socket.send(msgspec.msgpack.encode(message))


@asynccontextmanager
async def krea_client(url: str, query: str = "", **options: Any) -> AsyncIterator[KreaClient]:
    async with connect(f"{url}/session/any-name-of-mine{query}", max_size=None, **options) as socket:
        yield KreaClient(socket)


@asynccontextmanager
async def krea_page(url: str, *, session_id: str = "a-page", **changes: Any) -> AsyncIterator[KreaPage]:
    """With the page's own parameters of a film from text."""
    parameters = {
        "prompt": "sea",
        "width": 48,
        "height": 64,
        "num_blocks": 50,
        "num_denoising_steps": 4,
        "timestep_shift": 5,
    }
    async with connect(f"{url}/session/{session_id}", max_size=None) as socket:
        yield KreaPage(socket, session_id, parameters | changes)
