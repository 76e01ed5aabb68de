"""A client of vLLM-Omni's streaming video: JSON events, and one MP4 in pieces. What theirs say and read:
`vllm_omni.json`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.server.clients.facts import differences

PATIENCE_S = 30.0


@dataclass
class VLLMOmniClient:
    socket: ClientConnection
    film: bytearray = field(default_factory=bytearray)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    async def start(self, prompt: str, **options: Any) -> None:
        await self.say("session.start", prompt=prompt, format="m4s", **options)

    async def interact(self, prompt: str, event_id: str, **options: Any) -> None:
        await self.say(
            "session.interaction", interaction={"event_id": event_id, "event": {"prompt": prompt}, **options}
        )

    async def say(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def event(self, *kinds: str) -> dict[str, Any]:
        """The next event of these kinds; pictures on the way are kept."""
        while True:
            text = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
            assert isinstance(text, str), "a picture came without its metadata"
            event: dict[str, Any] = json.loads(text)
            self.differences += differences("vllm_omni", event["type"], event)
            if event["type"] == "video.chunk_metadata":
                fragment = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
                assert isinstance(fragment, bytes), "metadata came without its picture"
                assert len(fragment) == event["byte_length"]
                self.film += fragment
                self.chunks.append(event)
            if event["type"] in kinds:
                return event

    async def chunk(self) -> dict[str, Any]:
        return await self.event("video.chunk_metadata")


@asynccontextmanager
async def vllm_omni_client(url: str, **options: Any) -> AsyncIterator[VLLMOmniClient]:
    async with connect(f"{url}/v1/realtime/video", max_size=None, **options) as socket:
        yield VLLMOmniClient(socket)
