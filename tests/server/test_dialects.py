"""Dialects, each spoken by a client that knows its public description alone, to the real application over real sockets."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import av
import msgspec
import numpy as np
import pytest
from PIL import Image
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from millstream.server.app import AppConfig
from millstream.server.auth import Access
from tests.server.clients.krea_client import krea_client
from tests.server.clients.scope_client import Camera, ScopeClient
from tests.server.clients.sglang_client import sglang_client
from tests.server.clients.vllm_omni_client import vllm_omni_client
from tests.server.serving import Serving, serving

KEY = "a-key-for-tests"
FPS = 48.0
"""A chunk plays three quarters of a second: a busy machine can promise that."""
FIRST, LATER = 9, 12
"""Frames of a stream's first chunk and of all others."""


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_left(server: Serving) -> Iterator[None]:
    """A dialect's session ends with its connection."""
    yield
    server.until_empty()


def jpeg(grey: int = 128) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (80, 60), (grey, grey, grey)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("path", ["/v1/realtime_video/generate", "/v1/realtime/video", "/session/mine"])
def test_nobody_speaks_a_dialect_without_the_key(path: str) -> None:
    with serving(config=AppConfig(access=Access(api_key=KEY))) as locked:

        async def knock() -> None:
            with pytest.raises(InvalidStatus, match="401"):
                await connect(locked.socket_url(path))
            async with connect(locked.socket_url(path), additional_headers={"Authorization": f"Bearer {KEY}"}):
                pass
            async with connect(locked.socket_url(path), subprotocols=["millstream.v1", f"millstream.key.{KEY}"]) as browser:
                assert browser.subprotocol == "millstream.v1"

        asyncio.run(knock())


# SGLang


@pytest.mark.parametrize("format", ["webp", "jpeg", "raw"])
def test_sglang_chunks_come_as_frame_batches_and_end_after_max_chunks(server: Serving, format: str) -> None:
    async def run() -> None:
        async with sglang_client(server.socket_url()) as client:
            await client.init("sea", size="48x64", fps=FPS, max_chunks=3, realtime_output_format=format, guidance_scale=1.0)
            chunks = [await client.chunk() for _ in range(3)]
            with pytest.raises(ConnectionClosed):
                await client.chunk()
        assert [chunk.stats["chunk_index"] for chunk in chunks] == [0, 1, 2]
        assert (
            [chunk.num_frames for chunk in chunks] == [chunk.stats["num_frames"] for chunk in chunks] == [FIRST, LATER, LATER]
        )
        assert chunks[0].stats["notes"] == ["guidance_scale means nothing here and was left out"]
        assert client.errors == []
        if format == "raw":
            assert {len(frame) for frame in chunks[1].frames} == {LATER * 64 * 48 * 3}
        else:
            assert {Image.open(io.BytesIO(frame)).size for frame in chunks[1].frames} == {(48, 64)}
            assert chunks[1].content_types == {f"image/{format}"}

    asyncio.run(run())


def test_sglang_prompt_events_get_two_receipts_and_others_an_error_while_the_stream_goes_on(server: Serving) -> None:
    async def run() -> None:
        async with sglang_client(server.socket_url()) as client:
            await client.init("sea", fps=FPS, first_frame=b"a picture")
            await client.chunk()
            assert "first_frame" in client.errors.pop()["content"]
            await client.event("prompt", {"prompt": "a storm"}, event_id=7)
            await client.event("camera_actions", ["w"], event_id=8)
            await client.send({"type": "event", "kind": "camera_actions", "event_id": 9, "speed": 2, "smooth": None})
            receipts: list[dict[str, Any]] = []
            notes: list[str] = []
            while len(receipts) < 2 or not notes:
                stats = (await client.chunk()).stats
                receipts += stats["receipts"]
                notes += stats["notes"]
            assert notes == ["speed means nothing here and was left out"]
            assert [(each["event_id"], each["state"]) for each in receipts] == [(7, "queued"), (7, "applied")]
            assert [(each["event_id"], each["code"]) for each in client.errors] == [(8, "bad_control"), (9, "bad_control")]
            assert "camera_actions" in client.errors[0]["content"]
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
def test_sglang_nonsense_is_answered_and_the_connection_still_works(server: Serving, message: Any, said: str) -> None:
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
                b"\x91" * 20_000,
                b"\xdf\xff\xff\xff\xff",
                "text",
                b"\xc6\xff\xff\xff\xffx",
                b"\x80" * 5,
            ):
                await client.socket.send(data)
                assert (await client.error())["code"] == "bad_message"
            await client.socket.send(bytes(5 * 2**20))
            assert (await client.error())["code"] == "too_large"

    asyncio.run(run())


# vLLM-Omni


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


# Krea


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


# Scope


def with_scope(server: Serving, does: Callable[[ScopeClient], Awaitable[None]]) -> None:
    async def run() -> None:
        client = ScopeClient(server.url())
        try:
            await does(client)
        finally:
            await client.close()

    asyncio.run(run())


def test_scope_the_servers_one_pipeline_loads_and_no_other(server: Serving) -> None:
    async def run(client: ScopeClient) -> None:
        refused = await client.request("POST", "/pipeline/load", {"pipeline_id": "longlive"})
        assert (refused.status_code, "wan-tiny" in refused.json()["detail"]) == (404, True)
        params = {"height": 64, "width": 48, "seed": 5, "vae_type": "tae"}
        asked = {"pipeline_id": "wan-tiny", "load_params": params, "quantization": "fp8", "user_id": None}
        loaded = await client.request("POST", "/pipeline/load", asked)
        assert loaded.json()["left_out"] == ["vae_type", "quantization"]
        status = (await client.request("GET", "/pipeline/status")).json()
        assert (status["status"], status["load_params"]) == ("loaded", {"height": 64, "width": 48, "seed": 5})
        await client.connect(prompts=[{"text": "sea", "weight": 1.0}])
        assert {(frame.height, frame.width) for frame in await client.frames(3)} == {(64, 48)}

    with_scope(server, run)


def test_scope_parameters_become_controls_and_the_rest_is_answered_in_words(server: Serving) -> None:
    async def run(client: ScopeClient) -> None:
        first = {"prompts": [{"text": "sea", "weight": 1.0}], "denoising_step_list": [1000, 500], "manage_cache": True}
        await client.connect(trickle=True, **first, vace_context_scale=1.5)
        await client.frames(2)
        assert (await client.hear("note"))["parameter"] == "vace_context_scale"
        sent = {
            "prompts": [{"text": "a storm", "weight": 0.7}, {"text": "sun", "weight": 0.3}],
            "denoising_step_list": [1000],
            "reset_cache": True,
            "kv_cache_attention_bias": 0.5,
            "transition": {"target_prompts": [{"text": "night"}], "num_steps": 2, "temporal_interpolation_method": "slerp"},
        }
        client.channel.send(msgspec.json.encode(sent).decode())
        for name in ("reset_cache", "prompts", "transition", "denoising_step_list", "kv_cache_attention_bias"):
            await client.hear("receipt", parameter=name, state="queued")
        assert (await client.hear("note"))["parameter"] == "temporal_interpolation_method"
        for name in ("reset_cache", "prompts", "transition", "denoising_step_list", "kv_cache_attention_bias"):
            await client.hear("receipt", parameter=name, state="applied")
        client.channel.send('{"paused": true, "noise_scale": 0.5, "recording": true}')
        assert "this session has none" in (await client.hear("error", parameter="noise_scale"))["error_message"]
        assert "keeps no recordings" in (await client.hear("error"))["error_message"]
        await client.hear("receipt", parameter="paused", state="applied")

    with_scope(server, run)


def test_scope_a_camera_becomes_the_stream_and_hanging_up_ends_it(server: Serving) -> None:
    async def run(client: ScopeClient) -> None:
        await client.connect(camera=Camera(), input_mode="video", noise_scale=0.5, prompts=[{"text": "sea"}])
        await client.frames(5)
        client.channel.send('{"noise_scale": 0.2}')
        await client.hear("receipt", parameter="noise_scale", state="queued")
        await client.hang_up()
        await asyncio.to_thread(server.until_empty)

    with_scope(server, run)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"sdp": "x", "type": "offer", "initialParameters": {"prompts": [{"text": "sea"}]}}, 400, "offer"),
        ({"sdp": "x", "type": "offer"}, 400, "prompts"),
        ({"sdp": "x", "type": "answer", "initialParameters": {}}, 400, "offer"),
        ({"sdp": "x" * 200_000, "type": "offer"}, 413, "bytes"),
        ({"type": "offer"}, 400, "sdp"),
        ([], 400, "body"),
    ],
)
def test_scope_offers_that_cannot_be_used_leave_nothing(server: Serving, body: Any, status: int, said: str) -> None:
    async def run(client: ScopeClient) -> None:
        response = await client.request("POST", "/webrtc/offer", body)
        assert (response.status_code, said in response.json()["detail"]) == (status, True), response.text

    with_scope(server, run)


def test_scope_nobody_hangs_up_a_connection_that_is_not_there(server: Serving) -> None:
    async def run(client: ScopeClient) -> None:
        assert (await client.request("DELETE", "/webrtc/offer/guess")).status_code == 404
        assert (await client.request("PATCH", "/webrtc/offer/guess", {"candidates": []})).status_code == 404

    with_scope(server, run)


def test_scope_nonsense_on_the_channel_is_answered_and_the_stream_goes_on(server: Serving) -> None:
    async def run(client: ScopeClient) -> None:
        await client.connect(prompts=[{"text": "sea"}])
        await client.frames(1)
        for text in (
            "{",
            "[]",
            '{"prompts": "sea"}',
            '{"prompts": [{"text": "sea", "wieght": 2}]}',
            '{"transition": {"target_prompts": [{"text": "sea"}], "speed": 2}}',
            '{"denoising_step_list": [1, 2]}',
            '{"noise_scale": 0.5}',
            '{"x": 1e999}',
        ):
            client.channel.send(text)
            await client.hear("error")
        await client.frames(3)

    with_scope(server, run)
