"""Krea's dialect, spoken by a client that knows its public description alone, over real sockets."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import msgspec
import pytest
from PIL import Image

from tests.server.clients.krea_client import krea_client
from tests.server.dialects.chunks import FIRST, LATER
from tests.server.serving import Serving


def jpeg(grey: int = 128) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (80, 60), (grey, grey, grey)).save(file, "JPEG")
    return file.getvalue()


def test_krea_pictures_come_and_changes_get_receipts(server: Serving) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url()) as client:
            assert await client.receive() == {"status": "ready"}
            await client.send(prompt="sea", width=48, height=64, seed=3, timestep_shift=5.0)
            assert "timestep_shift" in (await client.status("note"))["message"]
            assert Image.open(io.BytesIO(await client.picture())).size == (48, 64)
            await client.send(prompt="a storm", interp_steps=4)
            await client.status("receipt", change="prompt-1", state="queued")
            await client.status("receipt", change="prompt-1", state="applied")
            await client.send(action="reset")
            await client.status("receipt", change="reset-2", state="applied")
            await client.send(image=jpeg())
            assert "takes no frames" in (await client.status("error"))["message"]
            await client.send(strength=0.5)
            assert "noise_scale" in (await client.status("error", change="strength-3"))["message"]
            await client.picture()

    asyncio.run(run())


def test_krea_pictures_that_are_sent_become_the_stream(server: Serving) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url()) as client:
            await client.send(prompt="sea", strength=0.6, image=jpeg())
            for grey in range(2, 2 + LATER + FIRST):
                await client.send(image=jpeg(grey * 8))
            await client.picture()
            await client.send(strength=0.3)
            await client.status("receipt", change="strength-1", state="queued")

    asyncio.run(run())


def test_krea_a_stream_of_so_many_blocks_ends(server: Serving) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url()) as client:
            await client.send(prompt="sea", num_blocks=2)
            await client.status("ended", code="stopped")
            assert len(client.pictures) == FIRST + LATER
            assert [each for each in client.statuses if each["status"] == "receipt"] == []

    asyncio.run(run())


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"prompt": "x", "width": -1},
        {"prompt": "x", "strength": 2},
        {"prompt": "x", "image": "no bytes"},
        {"prompt": None},
        7,
    ],
)
def test_krea_nonsense_is_answered_and_the_connection_still_works(server: Serving, message: Any) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url()) as client:
            await client.socket.send(msgspec.msgpack.encode(message))
            assert (await client.status("error"))["code"] == "bad_message"
            await client.send(prompt="sea")
            await client.picture()
            await client.send(action="explode")
            assert (await client.status("error"))["code"] == "bad_message"

    asyncio.run(run())
