"""A fleet whose replicas do not come: said in one line, and tried again; nobody waits in vain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from millstream.core.client_messages import Ask
from millstream.core.errors import ConfigError, DeviceError, Overloaded, UnknownSession
from millstream.fleet.config import read_fleet
from millstream.fleet.fleet import LiveFleet
from millstream.fleet.gateway import create_gateway
from millstream.server.access.auth import Access
from tests.fleet.playing import Threads
from tests.server.clients.facts import differences

TOML = """
[replicas.tiny]
model = "wan-tiny"
minimum = 1
ready-within = 0.2
"""
SOCKET = {
    "type": "websocket", "path": "/v1/realtime/video", "headers": [(b"host", b"127.0.0.1")], "query_string": b"",
    "client": ("127.0.0.1", 1), "scheme": "ws", "subprotocols": [], "extensions": {"websocket.http.response": {}},
}  # fmt: skip


class NoRoom(Threads):
    async def start(self, pool: str, version: str) -> None:
        raise DeviceError(f"no node has room for a replica of {pool}")


async def after_a_while(fleet: LiveFleet, seconds: float) -> None:
    running = asyncio.ensure_future(fleet.run())
    await asyncio.sleep(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await fleet.close()


def fleet_of(tmp_path: Path, replicas: Threads) -> LiveFleet:
    (tmp_path / "fleet.toml").write_text(TOML)
    return LiveFleet(read_fleet(tmp_path / "fleet.toml"), replicas, bytes(32))


@pytest.mark.parametrize(
    ("replicas", "says"),
    [
        (
            Threads(),
            "was not ready within 0.2 s: cannot read weights.safetensors (all of it: /tmp/errors.txt)",
        ),
        (NoRoom(), "no node has room for a replica of tiny"),
    ],
)
def test_a_replica_that_never_becomes_ready_is_one_line(tmp_path: Path, replicas: Threads, says: str) -> None:
    fleet = fleet_of(tmp_path, replicas)
    asyncio.run(after_a_while(fleet, 1.2))
    (failed, *_) = [event for event in fleet.notes.events if event.kind == "start failed"]
    assert says in failed.words
    assert "\n" not in failed.words


def test_without_replicas_whoever_asks_is_told_so(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, Threads())
    with pytest.raises(Overloaded, match="no replica is ready"):
        asyncio.run(fleet.price(Ask(prompt="sea"), "s", key=""))
    with pytest.raises(UnknownSession, match="there is no replica"):
        fleet.drain("nobody")


def test_without_replicas_other_peoples_clients_are_told_so_in_their_own_words(tmp_path: Path) -> None:
    sent: list[Any] = []

    async def connect() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        app = create_gateway(fleet_of(tmp_path, Threads()), Access())
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1") as http,
        ):
            video = await http.post("/v1/videos", json={"prompt": "sea"})
            assert (video.status_code, differences("openai", "error", video.json()["error"])) == (503, [])
            offer = await http.post("/api/v1/webrtc/offer", json={})
            assert (offer.status_code, "no replica is ready" in offer.json()["detail"]) == (503, True)
            film = await http.get("/download_video/me")
            assert (film.status_code, differences("krea", "error", film.json())) == (503, [])
            ours = await http.get("/v1/models")
            assert (ours.status_code, ours.json()["error"]["code"]) == (503, "refused")
            await app(SOCKET, connect, send)
            assert (sent[0]["status"], b"no replica is ready" in sent[1]["body"]) == (503, True), (
                "before it is opened"
            )

    asyncio.run(ask())


def test_replicas_that_are_not_in_the_file_are_one_line(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, Threads())
    with pytest.raises(ConfigError, match="there are no replicas called large; known: tiny"):
        fleet.deploy("large", "2")
    with pytest.raises(ConfigError, match="there are no replicas called large; known: tiny"):
        fleet.resize("large", 1, 2)
    with pytest.raises(ConfigError, match="need 0 or more replicas at least and 1 or more at most"):
        fleet.resize("tiny", 2, 1)
    with pytest.raises(UnknownSession, match="'abc' is not one session that tiny-a has room for now"):
        fleet.move("abc", "tiny-a")
