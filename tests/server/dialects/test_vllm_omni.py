"""vLLM-Omni's dialect, spoken as its example and its page speak it, over real sockets."""

from __future__ import annotations

import asyncio
import io
import time
from typing import Any

import av
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from tests.server.clients.facts import strangers
from tests.server.clients.vllm_omni_client import vllm_omni_client
from tests.server.dialects.chunks import FIRST, FPS, LATER
from tests.server.serving import Serving


def test_vllm_omni_pieces_in_order_are_one_film_of_the_frames_asked_for(server: Serving) -> None:
    async def run() -> bytes:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.start(
                "sea", model="wan-tiny", width=48, height=64, fps=FPS, num_frames=30, seed=3, cfg=4
            )
            began = await client.event("video.start")
            assert (began["format"], began["config"]["width"], began["left_out"]) == ("m4s", 48, ["cfg"])
            done = await client.event("session.done")
            assert (done["chunks"], done["stopped"], done["request_id"]) == (3, False, began["request_id"])
            assert [chunk["generation_chunk_index"] for chunk in client.chunks] == [0, 1, 2]
            assert [chunk["num_frames"] for chunk in client.chunks] == [FIRST, LATER, LATER]
            return bytes(client.film)

    film = asyncio.run(run())
    with av.open(io.BytesIO(film)) as container:
        frames = list(container.decode(video=0))
    assert len(frames) == FIRST + 2 * LATER
    assert {(frame.height, frame.width) for frame in frames} == {(64, 48)}
    assert np.diff([float(frame.time) for frame in frames]) == pytest.approx(1 / FPS, abs=1e-3)


def test_vllm_omni_events_start_run_and_complete_by_chunk(server: Serving) -> None:
    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.start("sea", fps=FPS)
            await client.chunk()
            await client.interact("a storm", "slow", transition_chunks=3)
            assert (await client.event("session.interaction.queued"))["event_id"] == "slow"
            while not client.chunks[-1]["completed_event_ids"]:
                await client.chunk()
            spans = [
                chunk
                for chunk in client.chunks
                if any(chunk[f"{when}_event_ids"] for when in ("started", "active", "completed"))
            ]
            assert [chunk["started_event_ids"] for chunk in spans] == [["slow"], [], []]
            assert [chunk["active_event_ids"] for chunk in spans] == [["slow"], ["slow"], []]
            assert [chunk["completed_event_ids"] for chunk in spans] == [[], [], ["slow"]]
            await client.interact("calm", "quick")
            await client.event("session.interaction.queued")
            while not client.chunks[-1]["started_event_ids"]:
                await client.chunk()
            assert client.chunks[-1]["completed_event_ids"] == ["quick"]
            await client.say("session.stop")
            done = await client.event("session.done")
            assert (done["stopped"], done["chunks"]) == (True, len(client.chunks))

    asyncio.run(run())


def test_vllm_omni_a_failed_interaction_leaves_the_stream_running(server: Serving) -> None:
    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.start("sea", fps=FPS)
            await client.interact("", "empty")
            failed = await client.event("error")
            assert (failed["code"], failed["event_id"]) == ("interaction_failed", "empty")
            for event in (
                {"multi_modal_data": {"camera": {"mode": "velocity"}}},
                {"multi_modal_data": {"camera": {"mode": "velocity", "data": {"actions": ["w"]}}}},
                {"prompt": "x", "negative_prompt": "y"},
                7,
            ):
                await client.say("session.interaction", interaction={"event_id": "camera", "event": event})
                failed = await client.event("error")
                assert (failed["code"], failed["event_id"]) == ("interaction_failed", "camera")
            await client.say("session.interaction", interaction={"event": {"camera": "left"}})
            assert (await client.event("error"))["code"] == "interaction_failed"
            assert client.differences == []
            await client.say("session.ping")
            await client.event("session.pong")
            seen = len(client.chunks)
            while len(client.chunks) < seen + 2:
                await client.chunk()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"type": "session.start", "prompt": "sea", "format": "avi"}', "bad_message"),
        ('{"type": "session.start", "prompt": "sea", "model": "another"}', "not_found"),
        ('{"type": "session.start", "prompt": "sea", "num_frames": 1e99}', "bad_message"),
        ('{"type": "session.start"}', "bad_message"),
        ('{"type": "session.stop"}', "bad_state"),
        ('{"type": "session.interaction", "interaction": {"event": {"prompt": "x"}}}', "bad_state"),
        ('{"type": []}', "bad_message"),
        ("[" * 100_000, "too_large"),
        ('"x"', "bad_message"),
        ("{" + " " * 5 * 2**20, "too_large"),
        ('{"type": "session.start", "prompt": "sea", "size": "64"}', "bad_message"),
        ('{"type": "session.start", "prompt": "sea", "seconds": "soon"}', "bad_message"),
        ('{"type": "session.start", "prompt": ""}', "bad_message"),
        ('{"type": "session.start", "prompt": "sea", "width": 47}', "bad_message"),
    ],
)
def test_vllm_omni_a_start_that_is_refused_is_answered_and_closed_at_once(
    server: Serving, text: str, code: str
) -> None:
    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.socket.send(text)
            began = time.monotonic()
            assert (await client.event("error"))["code"] == code
            with pytest.raises(ConnectionClosed):
                await client.event("nothing")
            assert time.monotonic() - began < 5, "a client waits for the end of its own start"
            assert client.differences == []

    asyncio.run(run())


def test_vllm_omni_nonsense_in_a_session_is_answered_and_the_stream_goes_on(server: Serving) -> None:
    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.start("sea", fps=FPS)
            for text in (
                '"x"',
                '{"type": []}',
                '{"type": "session.playback", "position_seconds": -1}',
                b"\0\1",
            ):
                await client.socket.send(text)
                assert (await client.event("error"))["code"] == "bad_message"
            await client.socket.send("{" + " " * 200_000)
            assert (await client.event("error"))["code"] == "too_large"
            await client.chunk()

    asyncio.run(run())


THEIRS: dict[str, Any] = {
    "model": "wan-tiny", "negative_prompt": "blur", "width": 48, "height": 64, "fps": int(FPS), "num_frames": 30,
    "guidance_scale": 1.0, "seed": 42,
}  # fmt: skip
"""As the example says it by default."""


@pytest.mark.parametrize(
    ("fields", "size", "chunks", "left_out"),
    [
        (THEIRS, (64, 48), 3, ["negative_prompt"]),
        ({"size": "48x64", "width": 640, "height": 384, "num_frames": 9}, (64, 48), 1, []),
        ({"seconds": "1", "fps": 20.0, "size": "48x64"}, (64, 48), 2, []),
        ({"video_params": {"width": 48, "height": 64, "fps": FPS, "num_frames": 21}}, (64, 48), 2, []),
        (
            {
                "sampling_params": {"width": 48, "height": 64, "num_frames": 9.0, "top_k": 3, "seed": 7},
                "guidance_scale": 4,
            },
            (64, 48),
            1,
            ["guidance_scale", "top_k"],
        ),
        ({"num_inference_steps": 2, "num_frames": 9, "extra_params": {"a": 1}}, None, 1, ["extra_params"]),
        (
            {"num_inference_steps": 50, "num_frames": 9, "lora": None, "negative_prompt": None},
            None,
            1,
            ["num_inference_steps"],
        ),
    ],
)
def test_vllm_omni_whatever_its_clients_name_is_heeded_or_named(
    server: Serving, fields: dict[str, Any], size: tuple[int, int] | None, chunks: int, left_out: list[str]
) -> None:
    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            assert strangers("vllm_omni", "session.start", fields) == []
            await client.start("sea", **fields)
            began = await client.event("video.start")
            if size is not None:
                assert (began["config"]["height"], began["config"]["width"]) == size
            if fields.get("num_inference_steps") == 2:
                assert len(began["config"]["steps"]) == 2
            assert began["left_out"] == left_out
            if left_out:
                assert left_out[0] in (await client.event("session.note"))["message"]
            assert (await client.event("session.done", "error"))["chunks"] == chunks
            assert client.differences == []

    asyncio.run(run())


def test_vllm_omni_a_picture_of_megabytes_is_read_and_named_and_the_page_hears_no_error(
    server: Serving,
) -> None:
    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            picture = {"image_url": "https://example.org/" + "A" * 3 * 2**20}
            await client.start("sea", fps=FPS, image_reference=picture, streaming_buffer_seconds=1.25)
            assert "not fetched" in (await client.event("session.note", "error"))["message"]
            began = await client.event("video.start", "error")
            assert began["left_out"] == []
            await client.chunk()
            (live_session,) = server.hub.live_sessions.values()
            assert live_session.request.lead_s == 1.25
            await client.say("session.playback", position_seconds=0.5)
            interaction = {
                "event_id": "a",
                "event": {"prompt": "a storm", "negative_prompt": None},
                "transition_chunks": 2.0,
            }
            await client.say("session.interaction", interaction=interaction)
            assert (await client.event("session.interaction.queued", "error"))["event_id"] == "a"
            await client.say("session.interaction", interaction=interaction)
            conflict = await client.event("error")
            assert (conflict["code"], conflict["event_id"]) == ("event_id_conflict", "a")
            assert client.differences == []

    asyncio.run(run())


def test_vllm_omni_a_connection_without_a_start_is_told_so_and_closed(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.server.dialects.vllm_omni.START_S", 0.2)

    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.say("session.ping")
            await client.event("session.pong")
            assert (await client.event("error"))["code"] == "start_timeout"
            with pytest.raises(ConnectionClosed):
                await client.event("nothing")

    asyncio.run(run())


def test_vllm_omni_a_stream_that_makes_no_progress_is_reported(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.server.dialects.vllm_omni.STALL_S", 0.5)

    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.start("sea", fps=1)
            for _ in range(4):
                await asyncio.sleep(0.3)
                await client.say("session.ping")
            while (event := await client.event("session.pong", "error"))["type"] != "error":
                pass
            assert event["code"] == "stalled"

    asyncio.run(run())
