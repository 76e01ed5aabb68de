"""Other protocols at the gateway's address, and with a ticket at a replica's: their clients cannot tell it
from one server."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable, Iterator

import av
import httpx2
import pytest

from tests.fleet.playing import SmallFleet, small_fleet
from tests.server.clients.krea_client import krea_client
from tests.server.clients.scope_client import ScopeClient
from tests.server.clients.sglang_client import sglang_client
from tests.server.clients.vllm_omni_client import vllm_omni_client
from tests.server.clients.webrtc_client import WebRTCClient
from tests.server.serving import wait_until

Speak = Callable[[str, dict[str, str]], Awaitable[None]]
"""To an address, with headers that let one in."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    """Somebody is on the first replica, so that others come to the second, which is asked last."""
    with small_fleet(tmp_path_factory.mktemp("fleet"), placement="spread") as running:
        made = httpx2.post(f"{running.url}/v1/sessions", json={"prompt": "sea", "fps": 4.0}).json()
        assert running.place_of(made["session"]) == "tiny-a"
        yield running


def on_second(fleet: SmallFleet) -> bool:
    return bool(fleet.servers["tiny-b"].hub.live_sessions)


async def sglang(url: str, headers: dict[str, str]) -> None:
    async with sglang_client(url.replace("http", "ws"), additional_headers=headers) as client:
        await client.init("sea", realtime_output_format="raw")
        assert (await client.chunk()).num_frames == 9
        await client.event("prompt", "a storm", 1)
        await client.chunk()
        assert client.errors == []


async def krea(url: str, headers: dict[str, str]) -> None:
    async with krea_client(url.replace("http", "ws"), additional_headers=headers) as client:
        await client.hear(status="ready")
        await client.send(prompt="sea", width=48, height=64)
        await client.picture()
        await client.send(prompt="a storm")
        await client.hear(kind="receipt", state="applied")


async def vllm_omni(url: str, headers: dict[str, str]) -> None:
    async with vllm_omni_client(url.replace("http", "ws"), additional_headers=headers) as client:
        await client.start("sea")
        await client.chunk()
        await client.interact("a storm", "mine")
        await client.chunk()
        assert client.differences == []


async def webrtc(url: str, headers: dict[str, str]) -> None:
    """Its pictures come from the replica either way: only the offer passes the gateway."""
    client = WebRTCClient(url, headers=headers)
    try:
        await client.start(prompt="sea", fps=24)
        await client.frames(2)
        await client.say(type="control", control={"type": "prompt", "prompt": "a storm", "id": "mine"})
        await client.hear("receipt", control_id="mine", state="applied")
        await client.say(type="stop")
        await client.hear("ended")
    finally:
        await client.close()


@pytest.mark.parametrize("speak", [sglang, krea, vllm_omni, webrtc])
@pytest.mark.parametrize("way", ["through the gateway", "with a ticket"])
def test_another_protocol_is_served(fleet: SmallFleet, speak: Speak, way: str) -> None:
    second = fleet.servers["tiny-b"]

    async def run() -> None:
        if way == "with a ticket":
            await speak(second.url(), {"Authorization": f"Bearer {fleet.ticket('tiny-b', 'mine')}"})
        else:
            await speak(fleet.url, {})

    asyncio.run(run())
    second.until_empty()
    wait_until(lambda: not fleet.sessions_on("tiny-b"), "the gateway has its place back")


def test_scope_loads_connects_trickles_and_hangs_up_through_the_gateway(fleet: SmallFleet) -> None:
    async def run() -> None:
        client = ScopeClient(fleet.url)
        try:
            asked = {"pipeline_id": "wan-tiny", "load_params": {"height": 64, "width": 48}}
            assert (await client.request("POST", "/pipeline/load", asked)).status_code == 200
            await client.connect(trickle=True, prompts=[{"text": "sea", "weight": 1.0}])
            assert on_second(fleet)
            assert {(frame.height, frame.width) for frame in await client.frames(2)} == {(64, 48)}, (
                "loaded for all replicas"
            )
            client.channel.send('{"prompts": [{"text": "a storm"}]}')
            await client.hear("receipt", parameter="prompts", state="applied")
            await client.hang_up()
        finally:
            await client.close()

    asyncio.run(run())
    fleet.servers["tiny-b"].until_empty()


def test_a_clip_for_openais_clients_is_made_found_listed_and_deleted_through_the_gateway(
    fleet: SmallFleet,
) -> None:
    with httpx2.Client(base_url=fleet.url, timeout=30) as http:
        video = http.post("/v1/videos", json={"prompt": "sea", "seconds": "1"}).json()
        assert on_second(fleet)
        while video["status"] not in ("completed", "failed"):
            time.sleep(0.05)
            video = http.get(f"/v1/videos/{video['id']}").json()
        assert video["status"] == "completed", video
        assert [each["id"] for each in http.get("/v1/videos").json()["data"]] == [video["id"]]
        film = http.get(f"/v1/videos/{video['id']}/content")
        with av.open(io.BytesIO(film.content)) as container:
            assert sum(1 for _ in container.decode(video=0)) >= 16
        assert http.delete(f"/v1/videos/{video['id']}").status_code == 200
        assert http.get(f"/v1/videos/{video['id']}").status_code == 404


def test_sessions_of_all_replicas_are_listed_through_the_gateway(fleet: SmallFleet) -> None:
    made = httpx2.post(f"{fleet.url}/v1/sessions", json={"prompt": "sea", "fps": 4.0})
    assert len(httpx2.get(f"{fleet.url}/v1/sessions").json()["sessions"]) == 2, "hers and this one"
    assert httpx2.delete(f"{fleet.url}/v1/sessions/{made.json()['session']}").status_code < 300
    fleet.servers["tiny-b"].until_empty()


def test_players_fetch_a_session_by_its_view_link_through_the_gateway(fleet: SmallFleet) -> None:
    second = fleet.servers["tiny-b"]
    with httpx2.Client(base_url=fleet.url, timeout=30) as http:
        made = http.post("/v1/sessions", json={"prompt": "sea", "fps": 24.0, "unattended": "run"}).json()
        assert on_second(fleet), "the replica that is asked last"
        view, (live_session,) = f"/v1/views/{made['view']}", second.hub.live_sessions.values()
        with http.stream("GET", f"{view}/live.mjpg") as pictures:
            assert pictures.headers["content-type"].startswith("multipart/x-mixed-replace")
            read = b""  # without a name for it the player would hang up after the loop
            pieces = pictures.iter_raw()
            for piece in pieces:
                read += piece
                if read.count(b"Content-Type: image/jpeg") >= 3:
                    break
            assert len(live_session.viewers) == 1
            pieces.close()
        wait_until(lambda: not live_session.viewers, "a player that hangs up is let go at the replica too")
        head = http.head(f"{view}/live.mjpg")
        assert (head.status_code, head.headers["content-type"]) == (200, pictures.headers["content-type"])
        playlist = http.get(f"{view}/live.m3u8", params={"api_key": "mine"})
        assert playlist.headers["content-type"] == "application/vnd.apple.mpegurl"
        names = [line for line in playlist.text.splitlines() if not line.startswith("#")]
        opening = playlist.text.partition('URI="')[2].partition('"')[0]
        assert all(name.endswith("?api_key=mine") for name in (opening, *names)), (
            "with what lets a player in here"
        )
        film = b"".join(http.get(f"{view}/{name}").content for name in (opening, names[-1]))
        with av.open(io.BytesIO(film)) as container:
            assert sum(1 for _ in container.decode(video=0)) >= 9
        http.delete(f"/v1/sessions/{made['session']}")
        second.until_empty()
        assert "#EXT-X-ENDLIST" in http.get(f"{view}/live.m3u8").text, "played to its end"
        nobody = http.get("/v1/views/nobody/live.m3u8")
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "not_found")


def test_what_replicas_of_another_model_have_is_found_too(
    fleet: SmallFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view link, a recording or a video does not say by which model it was made."""
    made = httpx2.post(f"{fleet.url}/v1/sessions", json={"prompt": "sea", "fps": 4.0}).json()
    assert on_second(fleet)
    running = fleet.running.fleet
    path = f"{fleet.url}/v1/views/{made['view']}/live.mjpg"
    monkeypatch.setattr(running, "ready", lambda model="": [running.links["tiny-a"]])
    assert httpx2.head(path).status_code == 200
    assert len(httpx2.get(f"{fleet.url}/v1/sessions").json()["sessions"]) == 2
    assert httpx2.delete(f"{fleet.url}/v1/sessions/{made['session']}").status_code < 300
    fleet.servers["tiny-b"].until_empty()
    assert httpx2.head(path).status_code == 404
