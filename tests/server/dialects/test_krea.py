"""Krea's dialect, spoken as its page speaks it and by a client that says anything, over real sockets."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import av
import httpx2
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.server.clients.facts import differences
from tests.server.clients.krea_client import krea_client, krea_page
from tests.server.dialects.chunks import FIRST, LATER
from tests.server.serving import Serving, serving

Frame = NDArray[np.int16]


def jpeg(grey: int = 128) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (80, 60), (grey, grey, grey)).save(file, "JPEG")
    return file.getvalue()


def test_krea_pictures_come_and_changes_get_receipts(server: Serving) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url()) as client:
            assert await client.receive() == {"status": "ready", "worker": "wan-tiny"}
            await client.send(prompt="sea", width=48, height=64, seed=3, timestep_shift=5.0)
            assert "timestep_shift" in (await client.hear(kind="note"))["status"]
            assert Image.open(io.BytesIO(await client.picture())).size == (48, 64)
            await client.send(prompt="a storm", interp_steps=4)
            await client.hear(kind="receipt", change="prompt-1", state="queued")
            await client.hear(kind="receipt", change="prompt-1", state="applied")
            await client.send(action="reset")
            await client.hear(kind="receipt", change="reset-2", state="applied")
            await client.send(seed=7)
            await client.hear(kind="receipt", change="seed-3", state="applied")
            await client.picture()

    asyncio.run(run())


def test_krea_the_page_plays_a_film_to_its_end_and_closes_when_it_has_played(server: Serving) -> None:
    async def run() -> None:
        async with krea_page(server.socket_url(), num_blocks=3) as page:
            await page.until_pictures(1)
            await page.change_prompt("a storm")
            while not page.completed:
                await page.hear()
            assert len(page.buffer) == FIRST + 2 * LATER
            assert (page.session_id, page.differences) == ("a-page", [])
            assert not any("error" in status.lower() for status in page.status)
            assert "prompt-1: queued for chunk" in " ".join(page.status)
            await asyncio.sleep(0.3)
            await (
                await page.socket.ping()
            )  # it is still open: a close would have the page drop what it has not shown

    asyncio.run(run())


def test_krea_a_camera_sends_the_same_strength_with_every_frame_and_hears_of_it_never(
    server: Serving,
) -> None:
    async def run() -> None:
        webcam: dict[str, Any] = {"webcam_mode": True, "webcam_fps": 10, "strength": 0.6}
        async with krea_page(server.socket_url(), **webcam) as page:
            while len(page.status) < 2:
                await page.hear()
            assert any("waiting for the camera" in status for status in page.status)
            for grey in range(2, 2 + LATER + FIRST):
                await page.show_camera(jpeg(grey * 8), 0.6)
                await asyncio.sleep(0.02)
            await page.until_pictures(1)
            assert len(page.status) == 2, (
                f"one note for what is left out, one for what is waited for: {page.status}"
            )
            await page.show_camera(jpeg(), 0.3)
            while "strength-1: queued" not in page.status[-1]:
                await page.hear()
            assert page.differences == []

    asyncio.run(run())


@pytest.mark.parametrize("first", [{"strength": 1.0}, {}])
def test_krea_a_session_without_a_camera_streams_from_text_and_says_once_that_it_takes_no_pictures(
    server: Serving, first: dict[str, Any]
) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url()) as client:
            await client.send(prompt="sea", **first)
            await client.picture()
            for _ in range(5):
                await client.send(image=jpeg(), strength=0.4)
            await client.send(action="reset")
            await client.hear(change="reset-1", state="applied")
            assert [said["status"] for said in client.said if said.get("kind") == "note"].count(
                "this session was started from text and takes no pictures; send webcam_mode with the first "
                "message"
            ) == 1  # fmt: skip

    asyncio.run(run())


def test_krea_pictures_that_are_sent_become_the_stream(server: Serving) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url()) as client:
            await client.send(prompt="sea", strength=0.6, image=jpeg())
            for grey in range(2, 2 + LATER + FIRST):
                await client.send(image=jpeg(grey * 8))
            await client.picture()
            await client.send(strength=0.3)
            await client.hear(change="strength-1", state="queued")

    asyncio.run(run())


def test_krea_the_same_prompt_again_is_no_change(server: Serving) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url()) as client:
            await client.send(prompt="sea")
            await client.send(prompt="sea", interp_steps=4)
            await client.send(prompt="a storm")
            assert (await client.hear(kind="receipt"))["change"] == "prompt-1"
            await client.send(prompt="")
            assert "prompt" in (await client.hear(error=...))["error"]
            await client.send(prompt="")
            assert "prompt" in (await client.hear(error=...))["error"], (
                "what was refused is not taken for said"
            )

    asyncio.run(run())


def test_krea_pictures_come_in_messagepack_where_that_is_asked_for(server: Serving) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url(), "?fmt=msgpack") as client:
            await client.send(prompt="sea", width=48, height=64)
            packed = msgspec.msgpack.decode(await client.picture())
            assert differences("krea", "picture (?fmt=msgpack)", packed) == []
            assert Image.open(io.BytesIO(packed["image"])).size == (48, 64)

    asyncio.run(run())


def frames_of(server: Serving, count: int, **start: Any) -> list[Frame]:
    """Return the first `count` frames of a native stream, lossless."""
    frames = list[Frame]()
    with server.client() as client:
        live = client.start(formats=["raw"], **start)
        size = live["config"]["height"], live["config"]["width"], 3
        while len(frames) < count:
            frames += [
                np.frombuffer(part, np.uint8).reshape(size).astype(np.int16)
                for part in client.hear("chunk")["parts"]
            ]
        client.say({"type": "stop"})
        client.hear("ended")
    return frames[:count]


@pytest.mark.parametrize("query", ["", "?fmt=msgpack"])
def test_krea_every_picture_is_the_frame_whose_turn_it_is(server: Serving, query: str) -> None:
    """Compare with the same stream, lossless: the most similar frame has the same index."""
    count = FIRST + LATER
    expected = frames_of(server, count, prompt="sea", size="64x48", seed=3)

    async def run() -> list[bytes]:
        async with krea_client(server.socket_url(), query) as client:
            await client.send(prompt="sea", width=48, height=64, seed=3)
            return [await client.picture() for _ in range(count)]

    pictures = [msgspec.msgpack.decode(data)["image"] if query else data for data in asyncio.run(run())]
    shown = [np.asarray(Image.open(io.BytesIO(data)), np.int16) for data in pictures]
    off = [[float(np.abs(one - other).mean()) for other in expected] for one in shown]
    assert [int(np.argmin(row)) for row in off] == list(range(count))


def test_krea_the_film_of_a_session_is_downloaded_by_its_name_and_by_nobody_else(tmp_path: Path) -> None:
    with serving(tmp_path) as kept:

        async def run() -> None:
            async with krea_page(kept.socket_url(), session_id="mine", num_blocks=2) as page:
                while not page.completed:
                    await page.hear()

        asyncio.run(run())
        film = httpx2.get(kept.url("/download_video/mine"))
        assert (film.status_code, film.headers["content-type"]) == (200, "video/mp4")
        with av.open(io.BytesIO(film.content)) as container:
            assert sum(1 for _ in container.decode(video=0)) == FIRST + LATER
        assert httpx2.get(kept.url("/download_video/yours")).status_code == 404
        elsewhere = httpx2.HTTPTransport(local_address="127.0.0.2")
        with httpx2.Client(transport=elsewhere) as stranger:
            assert stranger.get(kept.url("/download_video/mine")).status_code == 404


def test_krea_a_page_that_starts_anew_gets_the_place_it_had() -> None:
    with serving(places=1) as small:

        async def run() -> None:
            for _ in range(4):
                async with krea_page(small.socket_url()) as page:
                    await page.until_pictures(1)
                    assert not [status for status in page.status if "error" in status], page.status

        asyncio.run(run())


@pytest.mark.parametrize("path", ["/upload_video", "/upload_start_frame"])
def test_krea_files_are_refused_where_the_page_shows_it(server: Serving, path: str) -> None:
    answer = httpx2.post(server.url(path), files={"file": ("frame.png", jpeg())})
    assert (answer.status_code, "takes no files" in answer.json()["error"]) == (200, True)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"prompt": "x", "width": -1},
        {"prompt": "x", "strength": 2},
        {"prompt": "x", "image": "no bytes"},
        {"prompt": "x", "image": 7},
        {"prompt": None},
        7,
    ],
)
def test_krea_nonsense_is_answered_and_the_connection_still_works(server: Serving, message: Any) -> None:
    async def run() -> None:
        async with krea_client(server.socket_url()) as client:
            await client.socket.send(msgspec.msgpack.encode(message))
            assert (await client.hear(error=...))["code"] == "bad_message"
            await client.send(prompt="sea")
            await client.picture()
            await client.send(action="explode")
            assert (await client.hear(error=...))["code"] == "bad_message"

    asyncio.run(run())
