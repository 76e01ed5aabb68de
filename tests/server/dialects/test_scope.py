"""Scope's dialect, spoken as its page speaks it, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.server.clients.facts import differences
from tests.server.clients.scope_client import Camera, ScopeClient, ScopePage
from tests.server.serving import Serving


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


def test_scope_its_wizard_has_nothing_to_set_up(server: Serving) -> None:
    async def run(client: ScopeClient) -> None:
        for method, body in (
            ("GET", None),
            ("PUT", {"inference_mode": "cloud"}),
            ("PUT", {"completed": False}),
            ("GET", None),
        ):
            answer = await client.request(method, "/onboarding/status", body)
            assert answer.status_code == 200
            assert differences("scope", "onboarding", answer.json()) == []
            assert answer.json()["completed"] is True, "its page shows the wizard wherever this is not so"

    with_scope(server, run)


def test_scope_parameters_become_controls_and_the_rest_is_answered_in_words(server: Serving) -> None:
    async def run(client: ScopeClient) -> None:
        first = {
            "prompts": [{"text": "sea", "weight": 1.0}],
            "denoising_step_list": [1000, 500],
            "manage_cache": True,
        }
        await client.connect(trickle=True, **first, vace_context_scale=1.5)
        await client.frames(2)
        assert (await client.hear("note"))["parameter"] == "vace_context_scale"
        sent = {
            "prompts": [{"text": "a storm", "weight": 0.7}, {"text": "sun", "weight": 0.3}],
            "denoising_step_list": [1000],
            "reset_cache": True,
            "kv_cache_attention_bias": 0.5,
            "transition": {
                "target_prompts": [{"text": "night"}],
                "num_steps": 2,
                "temporal_interpolation_method": "slerp",
            },
        }
        client.channel.send(msgspec.json.encode(sent).decode())
        for name in (
            "reset_cache",
            "prompts",
            "transition",
            "denoising_step_list",
            "kv_cache_attention_bias",
        ):
            await client.hear("receipt", parameter=name, state="queued")
        assert (await client.hear("note"))["parameter"] == "temporal_interpolation_method"
        for name in (
            "reset_cache",
            "prompts",
            "transition",
            "denoising_step_list",
            "kv_cache_attention_bias",
        ):
            await client.hear("receipt", parameter=name, state="applied")
        client.channel.send('{"paused": true, "noise_scale": 0.5, "recording": true}')
        assert (
            "this session has none" in (await client.hear("error", parameter="noise_scale"))["error_message"]
        )
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
def test_scope_offers_that_cannot_be_used_leave_nothing(
    server: Serving, body: Any, status: int, said: str
) -> None:
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
        path = f"/webrtc/offer/{client.session_id}"
        nonsense = [{"candidate": "a way", "sdpMid": "0"}]
        wrong = await client.request("PATCH", path, {"candidates": nonsense})
        assert (wrong.status_code, wrong.json()["detail"]) == (
            400,
            "cannot use this candidate: it is not one",
        )
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


FIRST: dict[str, Any] = {
    "input_mode": "text", "prompts": [{"text": "sea", "weight": 100}], "prompt_interpolation_method": "linear",
    "denoising_step_list": [1000, 500], "manage_cache": True, "kv_cache_attention_bias": 0.5, "pipeline_ids": ["wan-tiny"],
    "produces_video": True, "produces_audio": False, "vace_enabled": False, "vace_context_scale": 1.0,
}  # fmt: skip
"""As the page's own."""


def with_page(server: Serving, does: Callable[[ScopePage], Awaitable[None]]) -> None:
    async def run() -> None:
        page = ScopePage(server.url())
        try:
            await does(page)
        finally:
            await page.close()

    asyncio.run(run())


def test_scope_the_page_loads_by_nodes_and_plays_with_a_prompt_switch(server: Serving) -> None:
    async def run(page: ScopePage) -> None:
        await page.load(height=64, width=48, base_seed=7, vae_type="wan", vace_enabled=False)
        assert page.differences == []
        await page.play(**FIRST)
        frames = await page.frames(3)
        assert {(frame.height, frame.width) for frame in frames} == {(64, 48)}
        (live_session,) = server.hub.live_sessions.values()
        assert (live_session.request.config.seed, live_session.request.config.kv_bias) == (7, 0.5)
        assert (await page.hear("note"))["parameter"] == "vace_context_scale"
        await page.update(prompts=[{"text": "a storm", "weight": 100}], denoising_step_list=[1000, 500])
        await page.hear("receipt", parameter="prompts", state="applied")
        await page.frames(3)

    with_page(server, run)


def test_scope_a_page_that_sends_what_the_schema_says_gets_the_models_own_stream(server: Serving) -> None:
    async def run(page: ScopePage) -> None:
        (schema,) = (await page.request("GET", "/pipelines/schemas")).json()["pipelines"].values()
        defaults = {name: each["default"] for name, each in schema["config_schema"]["properties"].items()}
        await page.load(**{name: defaults[name] for name in ("height", "width", "base_seed")})
        noise = schema["mode_defaults"]["video"]["noise_scale"]
        steps = defaults["denoising_steps"]
        unused = {"quantize_mode": "none", "beat_cache_reset_rate": "none"}
        await page.play(
            **(
                FIRST
                | unused
                | {"denoising_step_list": steps, "noise_scale": noise, "kv_cache_attention_bias": 1.0}
            )
        )
        await page.frames(1)
        (live_session,) = server.hub.live_sessions.values()
        assert live_session.request.config == server.hub.card.stream
        assert (await page.hear("note"))["parameter"] == "vace_context_scale", (
            "what asks for nothing is not named"
        )

    with_page(server, run)


def test_scope_what_is_sent_again_as_it_is_changes_nothing(server: Serving) -> None:
    async def run(page: ScopePage) -> None:
        await page.play(**(FIRST | {"prompts": ["sea"]}))
        await page.update(
            denoising_step_list=[1000, 500], kv_cache_attention_bias=0.5, prompts=["sea"], node_id="node-1"
        )
        await page.update(denoising_step_list=[1000], vace_context_scale=1.0, node_id="node-1")
        await page.update(transition={"target_prompts": [{"text": "night", "weight": 1}], "num_steps": 1})
        await page.update(prompts=["sea"])
        asked = []
        while len(asked) < 3:
            said = await page.hear("receipt", state="queued")
            asked.append(said["parameter"])
        assert asked == ["denoising_step_list", "transition", "prompts"]

    with_page(server, run)


def test_scope_another_pipeline_is_refused_in_an_offer_too(server: Serving) -> None:
    async def run(page: ScopePage) -> None:
        body = {
            "sdp": "x",
            "type": "offer",
            "initialParameters": FIRST | {"pipeline_ids": ["wan-tiny", "rife"]},
        }
        refused = await page.request("POST", "/webrtc/offer", body)
        assert (refused.status_code, "one pipeline" in refused.json()["detail"]) == (404, True)

    with_page(server, run)


def test_scope_the_end_is_told_as_the_page_reads_it(server: Serving) -> None:
    async def run(page: ScopePage) -> None:
        await page.play(**FIRST)
        await page.frames(1)
        (session_id,) = server.hub.live_sessions
        server.hub.service.end(session_id, "the test is over")
        assert differences("scope", "stream_stopped", await page.hear("stream_stopped")) == []

    with_page(server, run)
