"""SGLang's dialect, spoken as its page and its Python clients speak it, over real sockets."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed

from tests.server.clients.sglang_client import sglang_client, sglang_collector, sglang_page
from tests.server.dialects.chunks import FIRST, FPS, LATER
from tests.server.serving import Serving


@pytest.mark.parametrize("format", ["webp", "jpeg", "raw"])
def test_sglang_chunks_come_as_frame_batches_and_end_after_max_chunks(server: Serving, format: str) -> None:
    async def run() -> None:
        async with sglang_client(server.socket_url()) as client:
            await client.init(
                "sea", size="48x64", fps=FPS, max_chunks=3, realtime_output_format=format, guidance_scale=2.0
            )
            chunks = [await client.chunk() for _ in range(3)]
            with pytest.raises(ConnectionClosed):
                await client.chunk()
        assert [chunk.stats["chunk_index"] for chunk in chunks] == [0, 1, 2]
        assert (
            [chunk.num_frames for chunk in chunks]
            == [chunk.stats["num_frames"] for chunk in chunks]
            == [FIRST, LATER, LATER]
        )
        assert chunks[0].stats["notes"] == ["guidance_scale means nothing here and was left out"]
        assert client.errors == []
        if format == "raw":
            assert {len(frame) for frame in chunks[1].frames} == {LATER * 64 * 48 * 3}
        else:
            assert {Image.open(io.BytesIO(frame)).size for frame in chunks[1].frames} == {(48, 64)}
            assert chunks[1].content_types == {f"image/{format}"}

    asyncio.run(run())


def test_sglang_prompt_events_get_two_receipts_and_others_an_error_while_the_stream_goes_on(
    server: Serving,
) -> None:
    async def run() -> None:
        async with sglang_client(server.socket_url()) as client:
            await client.init("sea", fps=FPS, first_frame="https://example.org/frame.png")
            assert "first_frame is an address" in (await client.chunk()).stats["notes"][0]
            await client.event("prompt", {"prompt": "a storm"}, event_id=7)
            await client.event("heartbeat", None)
            await client.event("camera_actions", ["w"], event_id=8)
            await client.send({"type": "event", "kind": "dance", "event_id": 9, "speed": 2, "smooth": None})
            receipts: list[dict[str, Any]] = []
            notes: list[str] = []
            while len(receipts) < 2 or len(notes) < 2:
                stats = (await client.chunk()).stats
                receipts += stats["receipts"]
                notes += stats["notes"]
            assert notes == [
                "this model takes no camera_actions; the stream goes on as it was",
                "speed means nothing here and was left out",
            ]
            assert [(each["event_id"], each["state"]) for each in receipts] == [(7, "queued"), (7, "applied")]
            assert [(each["event_id"], each["code"]) for each in client.errors] == [(9, "bad_control")]
            assert "dance" in client.errors[0]["content"]
            await client.chunk()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"type": "event", "kind": "prompt", "payload": "x"}, "say init first"),
        ({"type": "init", "prompt": ""}, "prompt"),
        ({"type": "init", "prompt": 7}, "prompt"),
        ({"type": "init", "prompt": "x", "fps": float("nan")}, "fps"),
        ({"type": "init", "prompt": "x", "fps": 1e300}, "fps"),
        ({"type": "init", "prompt": "x", "size": "wide"}, "size"),
        ({"type": "init", "prompt": "x", "size": "65x64"}, "multiples of 16"),
        ({"type": "init", "prompt": "x", "max_chunks": 0}, "max_chunks"),
        ({"type": "init", "prompt": "x" * 2**20}, "bytes"),
        ({"type": "weather"}, "type must be"),
        ([1, 2, 3], "a map"),
        ({1: 2}, "a map"),
    ],
)
def test_sglang_nonsense_is_answered_and_the_connection_still_works(
    server: Serving, message: Any, said: str
) -> None:
    async def run() -> None:
        async with sglang_client(server.socket_url()) as client:
            await client.send(message)
            assert said in (await client.error())["content"]
            await client.init("sea", fps=FPS)
            assert (await client.chunk()).num_frames == FIRST
            await client.init("sea")
            assert "already" in (await client.error())["content"]

    asyncio.run(run())


def test_sglang_bytes_that_are_no_messagepack_are_answered(server: Serving) -> None:
    async def run() -> None:
        async with sglang_client(server.socket_url()) as client:
            for data in (
                b"",
                b"\xc1",
                "text",
                b"\xc6\xff\xff\xff\xffx",
                b"\x80" * 5,
            ):
                await client.socket.send(data)
                assert (await client.error())["code"] == "bad_message"
            for data in (b"\x91" * 20_000, b"\xdf\xff\xff\xff\xff"):
                await client.socket.send(data)
                assert (await client.error())["code"] == "too_large"
            await client.socket.send(bytes(5 * 2**20))
            assert (await client.error())["code"] == "too_large"

    asyncio.run(run())


@pytest.mark.parametrize("format", ["webp", "jpeg", "raw", None])
def test_sglang_the_page_plays_and_cuts_over_to_its_event(server: Serving, format: str | None) -> None:
    async def run() -> None:
        async with sglang_page(server.socket_url()) as page:
            quality = 95 if format in ("webp", "jpeg") else None
            await page.init(fps=FPS, realtime_output_format=format, output_compression=quality)
            notes = (await page.chunk())["notes"]
            assert [note.split()[0] for note in notes if "left out" in note] == ["num_frames"] if quality is None else [
                "num_frames", "output_compression",
            ]  # fmt: skip
            assert len(page.frames) == 1 + LATER, "the picture that was sent, and a chunk after it"
            event_id = await page.event("prompt", "a storm")
            while page.cut_over_to < event_id:
                await page.chunk()
            await page.chunk()
            assert page.cut_over_to == event_id, "later chunks carry it too"
            assert (page.differences, page.history, page.status) == ([], [], "Live")

    asyncio.run(run())


def test_sglang_the_harness_collects_raw_frames_where_no_format_is_named(server: Serving) -> None:
    async def run() -> None:
        async with sglang_collector(server.socket_url()) as harness:
            init = {
                "type": "init", "model": "wan-tiny", "prompt": "sea", "size": "48x64", "seconds": 4,
                "first_frame": "https://example.org/frame.png", "fps": 25, "num_frames": 9,
            }  # fmt: skip
            await harness.collect(init, 2, {0: {"kind": "prompt", "payload": "a storm", "event_id": 1}})
            assert len(harness.frames) == FIRST + LATER
            assert [stats["raw_bytes"] for stats in harness.stats] == [
                n * 64 * 48 * 3 for n in (FIRST, LATER)
            ]

    asyncio.run(run())


def test_sglang_whole_numbers_that_the_page_packs_as_floats_are_whole(server: Serving) -> None:
    async def run() -> None:
        async with sglang_page(server.socket_url()) as page:
            page.next_event_id = 70_000
            await page.init(fps=FPS, seed=2**31)
            await page.chunk()
            event_id = await page.event("prompt", "a storm")
            while page.cut_over_to < event_id:
                await page.chunk()
            (live_session,) = server.hub.live_sessions.values()
            assert live_session.request.config.seed == 2**31
            assert page.differences == []

    asyncio.run(run())


def test_sglang_of_several_inputs_the_prompt_is_taken_and_the_rest_named(server: Serving) -> None:
    async def run() -> None:
        async with sglang_page(server.socket_url()) as page:
            await page.init(fps=FPS)
            await page.chunk()
            both = {
                "input_types": ["prompt", "camera_actions"],
                "prompt": "a storm",
                "camera_actions": [["w"], []],
            }
            event_id = await page.event("composite_input", both)
            notes: list[str] = []
            while page.cut_over_to < event_id:
                notes += (await page.chunk())["notes"]
            assert notes == ["this model takes no camera_actions; the stream goes on as it was"]
            await page.event("composite_input", {"input_types": ["dance"], "dance": [["w"]]})
            while not page.history:
                await page.chunk()
            assert "takes no composite_input" in page.history[0]

    asyncio.run(run())
