"""WebRTC, program to server and browser to server: pictures at media time, words on the channel, and nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.server.clients.webrtc_client import WebRTCClient
from tests.server.tiny_server import TinyServer, tiny_server


@pytest.fixture(scope="module")
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


def with_client(server: TinyServer, does: Callable[[WebRTCClient], Awaitable[Any]]) -> Any:
    """Run a client to its end, and see that nothing of it is left."""

    async def run() -> Any:
        client = WebRTCClient(server.url(""))
        try:
            return await does(client)
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.mark.parametrize("codec", ["VP8", "H264"])
def test_pictures_come_at_the_pace_of_media_time(server: TinyServer, codec: str) -> None:
    async def watch(client: WebRTCClient) -> None:
        answer = await client.start(codec=codec, prompt="sea", fps=24)
        assert answer["type"] == "answer"
        assert codec in answer["sdp"]
        assert server.hub.find(answer["session"]) is server.hub.find_view(answer["view"])
        frames = await client.frames(36)
        times = np.array([float(frame.time) for frame in frames])
        assert {(frame.height, frame.width) for frame in frames} == {(64, 64)}
        assert np.median(np.diff(times)) == pytest.approx(1 / 24, abs=0.005)
        assert np.abs(frames[0].to_ndarray(format="gray").astype(int) - frames[-1].to_ndarray(format="gray")).mean() > 1
        await client.say(type="stop")
        assert (await client.hear("ended"))["cause"] == "closed"

    with_client(server, watch)
    server.until_empty()
