"""Nobody speaks a dialect without the key."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from millstream.server.access.auth import Access
from millstream.server.access.keys import Keyring
from millstream.server.app import AppConfig
from tests.server.serving import serving

KEY = "a-key-for-tests"


@pytest.mark.parametrize("path", ["/v1/realtime_video/generate", "/v1/realtime/video", "/session/mine"])
def test_nobody_speaks_a_dialect_without_the_key(path: str) -> None:
    with serving(config=AppConfig(access=Access(keyring=Keyring.of_one(KEY)))) as locked:

        async def knock() -> None:
            with pytest.raises(InvalidStatus, match="401"):
                await connect(locked.socket_url(path))
            async with connect(
                locked.socket_url(path), additional_headers={"Authorization": f"Bearer {KEY}"}
            ):
                pass
            with pytest.raises(InvalidStatus, match="401"):
                await connect(locked.socket_url(f"{path}?api_key=wrong"))
            async with connect(locked.socket_url(f"{path}?api_key={KEY}")):
                pass
            async with connect(
                locked.socket_url(path), subprotocols=["millstream.v1", f"millstream.key.{KEY}"]
            ) as browser:
                assert browser.subprotocol == "millstream.v1"

        asyncio.run(knock())
