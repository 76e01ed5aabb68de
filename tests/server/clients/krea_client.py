"""A client of Krea's realtime video, written from its public description: MessagePack out, pictures back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

PATIENCE_S = 30.0


@dataclass
class KreaClient:
    socket: ClientConnection
    pictures: list[bytes] = field(default_factory=list)
    statuses: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, **fields: Any) -> None:
        await self.socket.send(msgspec.msgpack.encode(fields))

    async def receive(self) -> bytes | dict[str, Any]:
        data = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
        if isinstance(data, bytes):
            self.pictures.append(data)
            return data
        self.statuses.append(json.loads(data))
        return self.statuses[-1]

    async def picture(self) -> bytes:
        while not isinstance(data := await self.receive(), bytes):
            pass
        return data

    async def status(self, kind: str, **fields: Any) -> dict[str, Any]:
        while True:
            data = await self.receive()
            if isinstance(data, dict) and data["status"] == kind and fields.items() <= data.items():
                return data


@asynccontextmanager
async def krea_client(url: str, **options: Any) -> AsyncIterator[KreaClient]:
    async with connect(f"{url}/session/any-name-of-mine", max_size=None, **options) as socket:
        yield KreaClient(socket)
