"""Clips as OpenAI's clients ask for them, over real HTTP: create, ask again, fetch."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx2
import pytest

from millstream.core.client_messages import Ask
from millstream.core.keys import Key
from millstream.server.access.auth import Access
from millstream.server.access.budgets import Clients
from millstream.server.access.keys import Keyring
from millstream.server.access.limits import ClientLimits
from millstream.server.app import AppConfig
from millstream.server.protocol.endpoints import ServerState
from millstream.server.protocol.videos import MAX_UNFINISHED, MAX_VIDEOS, AskedVideo, VideoAsk, Videos
from millstream.server.sessions.hub import SessionHub
from millstream.server.transport.peers import Peers
from tests.server.clients.facts import differences
from tests.server.dialect_clients import with_hub
from tests.server.fakes import FakeService
from tests.server.serving import Serving, serving, wait_until

FIRST = 9
LATER = 12
FPS = 16
"""Of the tiny model."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def http(server: Serving) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url(), timeout=30) as client:
        yield client
        for video in client.get("/v1/videos").json()["data"]:
            client.delete(f"/v1/videos/{video['id']}")
    server.until_empty()


def until_done(http: httpx2.Client, video: dict[str, Any]) -> dict[str, Any]:
    seen: list[dict[str, Any]] = [video]

    def done() -> bool:
        seen.append(http.get(f"/v1/videos/{video['id']}").json())
        time.sleep(0.05)
        return seen[-1]["status"] in ("completed", "failed")

    wait_until(done, "the clip is there")
    assert [each["progress"] for each in seen] == sorted(each["progress"] for each in seen)
    return seen[-1]


@pytest.mark.parametrize("way", ["json", "form", "multipart"])
def test_a_clip_is_asked_for_waited_for_and_fetched(server: Serving, http: httpx2.Client, way: str) -> None:
    fields = {"prompt": "sea", "model": "wan-tiny", "seconds": "1", "size": "48x64", "seed": "7"}
    # OpenAI's Python client sends a form with parts, also where there is no file
    sent: dict[str, Any] = {
        "json": {"json": fields | {"quality": "high"}},
        "form": {"data": fields},
        "multipart": {"files": {name: (None, value) for name, value in fields.items()}},
    }[way]
    answer = http.post("/v1/videos", **sent)
    assert answer.status_code == 200, answer.text
    video = answer.json()
    assert differences("openai", "video", video) == []
    assert (video["object"], video["model"], video["seconds"], video["size"]) == (
        "video",
        "wan-tiny",
        "1",
        "48x64",
    )
    assert video["status"] in ("queued", "in_progress")
    assert video["left_out"] == (["quality"] if way == "json" else [])
    early = http.get(f"/v1/videos/{video['id']}/content")
    assert (early.status_code, early.json()["error"]["type"]) == (409, "invalid_request_error")
    done = until_done(http, video)
    assert (done["status"], done["progress"], done["error"]) == ("completed", 100, None)
    assert done["completed_at"] >= done["created_at"]
    film = http.get(f"/v1/videos/{video['id']}/content")
    assert film.headers["content-type"] == "video/mp4"
    with av.open(io.BytesIO(film.content)) as container:
        stream = container.streams.video[0]
        assert (stream.height, stream.width) == (64, 48)
        frames = list(container.decode(video=0))
    assert len(frames) == FIRST + LATER, "a second of the model's rate, in whole chunks"
    assert float(frames[FPS].time or 0) == pytest.approx(1.0, abs=0.01), "at the model's own rate"
    other = http.get(f"/v1/videos/{video['id']}/content", params={"variant": "thumbnail"})
    assert (other.status_code, "variant" in other.json()["error"]["message"]) == (400, True)
    listed = http.get("/v1/videos").json()
    assert differences("openai", "videos", listed) == []
    assert (listed["object"], listed["first_id"], listed["has_more"]) == ("list", video["id"], False)
    gone = http.delete(f"/v1/videos/{video['id']}").json()
    assert differences("openai", "deleted", gone) == []
    assert gone["id"] == video["id"]
    assert http.get(f"/v1/videos/{video['id']}").status_code == 404


def test_a_remix_is_refused_as_something_that_no_video_has(http: httpx2.Client) -> None:
    """404 sends OpenAI's client looking for the video."""
    answer = http.post("/v1/videos/video_of_nobody/remix", json={"prompt": "storm"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "")
    assert differences("openai", "error", answer.json()["error"]) == []
    assert "POST /v1/videos" in answer.json()["error"]["message"]


def test_the_same_seed_gives_the_same_clip(http: httpx2.Client) -> None:
    films = []
    for _ in range(2):
        video = http.post(
            "/v1/videos", json={"prompt": "sea", "seconds": "1", "size": "48x64", "seed": 7}
        ).json()
        until_done(http, video)
        films.append(http.get(f"/v1/videos/{video['id']}/content").content)
    assert films[0] == films[1]


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": "sea", "seconds": "0"}, 400, "seconds"),
        ({"prompt": "sea", "seconds": "soon"}, 400, "seconds"),
        ({"prompt": "sea", "seconds": 601}, 400, "seconds"),
        ({"prompt": "sea", "size": "wide"}, 400, "WIDTHxHEIGHT"),
        ({"prompt": "sea", "size": "65x64"}, 400, "multiples"),
        ({"prompt": "sea", "model": "sora-2"}, 404, "does not exist"),
        ({"prompt": "sea", "input_reference": "data:image/png;base64,AA"}, 400, "input_reference"),
    ],
)
def test_what_is_wrong_is_said_as_openais_clients_read_it(
    http: httpx2.Client, fields: dict[str, Any], status: int, said: str
) -> None:
    answer = http.post("/v1/videos", json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, said in error["message"], error["type"]) == (
        status,
        True,
        "invalid_request_error",
    )
    assert differences("openai", "error", error) == []


def test_no_form_makes_the_server_fail(http: httpx2.Client) -> None:
    kinds = (
        "multipart/form-data",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "application/json",
        "",
    )
    bodies = (
        b"",
        b"--x\r\n\r\n--x--",
        b"--x\r\nContent-Disposition: form-data\r\n\r\nsea\r\n--x--",
        b"\xff\xfe",
        b"[1]",
        b"a=" * 100,
    )
    for kind in kinds:
        for body in bodies:
            assert http.post("/v1/videos", content=body, headers={"content-type": kind}).status_code == 400


def test_one_client_has_so_many_unfinished_clips_and_a_deleted_one_makes_room(
    server: Serving, http: httpx2.Client
) -> None:
    ask = {"prompt": "sea", "seconds": "600", "size": "48x64"}
    ids = [http.post("/v1/videos", json=ask).json()["id"] for _ in range(MAX_UNFINISHED)]
    refused = http.post("/v1/videos", json=ask)
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "rate_limit_error")
    assert http.delete(f"/v1/videos/{ids[0]}").status_code == 200
    server.until(lambda: len(server.hub.live_sessions) == MAX_UNFINISHED - 1, "its session has ended")
    assert http.post("/v1/videos", json=ask).status_code == 200


def test_a_clip_waits_in_line_without_losing_its_place_and_one_that_cannot_be_is_failed(
    tmp_path: Path,
) -> None:
    with (
        serving(tmp_path, places=1, leave_line_s=0.2, abandon_s=0.2) as small,
        httpx2.Client(base_url=small.url(), timeout=30) as http,
    ):
        with small.client() as client:
            client.start()
            video = http.post("/v1/videos", json={"prompt": "sea", "seconds": "1", "size": "48x64"}).json()
            time.sleep(2.5)
            assert http.get(f"/v1/videos/{video['id']}").json()["status"] == "queued"
            client.say({"type": "stop"})
        assert until_done(http, video)["status"] == "completed"
        lost = http.post("/v1/videos", json={"prompt": "sea", "seconds": "600"}).json()
        (session_id,) = small.hub.live_sessions
        small.hub.service.end(session_id, "the test ends it")
        failed = until_done(http, lost)
        assert (failed["status"], failed["error"]) == (
            "failed",
            {"code": "closed", "message": "the test ends it"},
        )


def test_clips_belong_to_their_key_and_a_server_that_keeps_nothing_makes_none(tmp_path: Path) -> None:
    ring = Keyring()
    ring.add("key-of-alice-1", Key(name="alice"))
    ring.add("key-of-bob-12", Key(name="bob"))
    with serving(tmp_path, AppConfig(access=Access(keyring=ring))) as locked:
        alice, bob = ({"Authorization": f"Bearer {key}"} for key in ("key-of-alice-1", "key-of-bob-12"))
        video = httpx2.post(
            locked.url("/v1/videos"), json={"prompt": "sea", "seconds": "1"}, headers=alice
        ).json()
        path = locked.url(f"/v1/videos/{video['id']}")
        assert httpx2.get(path, headers=alice).status_code == 200
        assert (
            httpx2.get(path, headers=bob).status_code == httpx2.delete(path, headers=bob).status_code == 404
        )
        assert httpx2.get(locked.url("/v1/videos"), headers=bob).json()["data"] == []
        assert httpx2.delete(path, headers=alice).status_code == 200
        locked.until_empty()
    with serving() as forgetful:
        refused = httpx2.post(forgetful.url("/v1/videos"), json={"prompt": "sea"})
        assert (refused.status_code, "keeps no recordings" in refused.json()["error"]["message"]) == (
            404,
            True,
        )
        assert not forgetful.hub.live_sessions


def test_all_clips_come_in_one_list_for_a_client_told_of_more_asks_without_end() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        one = await hub.open_asked(Ask(prompt="sea"), client="me")
        clips = Videos()
        for number in range(MAX_VIDEOS):
            clips._clips[f"video_{number}"] = AskedVideo(
                video_id=f"video_{number}",
                live_session=one,
                asked=VideoAsk(prompt="sea"),
                size="48x64",
                num_chunks=2,
                left_out=(),
            )
        server = ServerState(hub=hub, peers=Peers(), limits=ClientLimits(), clients=Clients())
        listed = await clips.list_videos(server, {}, None)
        assert [clip.id for clip in listed.data] == [
            f"video_{number}" for number in reversed(range(MAX_VIDEOS))
        ]
        assert not listed.has_more
        hub.service.end(one.session_id)

    with_hub(play)
