"""vLLM-Omni's dialect, spoken by a client that knows its public description alone, over real sockets."""

from __future__ import annotations

import asyncio
import io

import av
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from tests.server.clients.vllm_omni_client import vllm_omni_client
from tests.server.dialects.chunks import FIRST, FPS, LATER
from tests.server.serving import Serving


def test_vllm_omni_pieces_in_order_are_one_film_of_the_frames_asked_for(server: Serving) -> None:
    async def run() -> bytes:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.start("sea", model="wan-tiny", width=48, height=64, fps=FPS, num_frames=30, seed=3, cfg=4)
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
            await client.start("sea", fps=FPS, image_reference={"image_url": "data:image/png;base64,"})
            assert (await client.event("error"))["code"] == "unsupported_input"
            await client.interact("", "empty")
            failed = await client.event("error")
            assert (failed["code"], failed["event_id"]) == ("interaction_failed", "empty")
            await client.say("session.interaction", interaction={"event": {"camera": "left"}})
            assert (await client.event("error"))["code"] == "interaction_failed"
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
        ("[" * 100_000, "bad_message"),
        ('"x"', "bad_message"),
        ("{" + " " * 200_000, "too_large"),
    ],
)
def test_vllm_omni_nonsense_is_answered_and_the_connection_still_works(server: Serving, text: str, code: str) -> None:
    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.socket.send(text)
            assert (await client.event("error"))["code"] == code
            await client.socket.send(b"\0\1")
            assert (await client.event("error"))["code"] == "bad_message"
            await client.start("sea", fps=FPS)
            await client.chunk()

    asyncio.run(run())


def test_vllm_omni_a_connection_without_a_start_is_told_so_and_closed(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.server.dialects.vllm_omni.START_S", 0.2)

    async def run() -> None:
        async with vllm_omni_client(server.socket_url()) as client:
            await client.say("session.ping")
            await client.event("session.pong")
            assert (await client.event("error"))["code"] == "start_timeout"
            with pytest.raises(ConnectionClosed):
                await client.event("nothing")

    asyncio.run(run())


def test_vllm_omni_a_stream_that_makes_no_progress_is_reported(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
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
