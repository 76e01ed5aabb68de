"""Pictures, keys and the camera in other people's words: what they become here."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from millstream.core.client_messages import ProtocolError
from millstream.core.config import NO_CONDITIONS, ConditionsConfig
from millstream.core.controls import SetActions
from millstream.server.dialects.sglang_actions import actions_of
from millstream.server.dialects.vllm_omni_camera import CameraData, CameraEvent, camera_of
from millstream.server.protocol.videos import _reference
from millstream.server.sessions.hub import SessionHub
from tests.server.dialect_clients import Client
from tests.server.fakes import CARD
from tests.server.test_conditions import KEYS, WORLD, TimelineService, picture

PNG = picture()
ADDRESS = "data:image/png;base64," + base64.b64encode(PNG).decode()


def play_on(takes: ConditionsConfig, play: Callable[[SessionHub, TimelineService], Awaitable[None]]) -> None:
    async def main() -> None:
        service = TimelineService(takes)
        hub = SessionHub(service, replace(CARD, conditions=takes))  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(play(hub, service), 60)
        finally:
            await hub.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("dialect", "opening"),
    [
        ("sglang", {"type": "init", "prompt": "sea", "first_frame": PNG}),
        ("sglang", {"type": "init", "prompt": "sea", "first_frame": ADDRESS}),
        ("krea", {"prompt": "sea", "start_frame": base64.b64encode(PNG).decode()}),
        ("vllm_omni", {"type": "session.start", "prompt": "sea", "image_reference": {"image_url": ADDRESS}}),
        ("vllm_omni", {"type": "session.start", "prompt": "sea", "image_reference": {"image_url": {"url": ADDRESS}}}),
    ],
)  # fmt: skip
def test_a_stream_begins_from_the_picture_that_a_client_sends(dialect: str, opening: dict[str, Any]) -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client = Client(dialect, hub)
        await client.say(opening)
        (session,) = service.sessions.values()
        assert session.request.picture is not None
        assert (session.request.picture.height, session.request.picture.width) == (32, 32)

    play_on(NO_CONDITIONS, play)


@pytest.mark.parametrize(
    "given", ["https://example.org/a.png", {"image_url": "file:///etc/passwd"}, {"file_id": "a"}]
)
def test_an_address_is_not_fetched_and_the_stream_begins_without(given: Any) -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client = Client("vllm_omni", hub)
        heard = await client.say({"type": "session.start", "prompt": "sea", "image_reference": given})
        (session,) = service.sessions.values()
        assert session.request.picture is None
        notes = [each["message"] for each in heard if each["type"] == "session.note"]
        assert len(notes) == 1
        assert "image_reference" in notes[0]

    play_on(NO_CONDITIONS, play)


@pytest.mark.parametrize(
    ("payload", "held", "tapped"),
    [
        ({"mode": "state", "transitions": [{"actions": ["w", "j"], "client_ts_ms": 5}]}, ("w", "left"), ()),
        ({"transitions": [{"actions": ["w"]}, {"actions": []}]}, (), ("w",)),
        ([["w"], ["W", "a"], ["a"]], ("a",), ("w",)),
        (["w", "up"], ("w", "up"), ()),
        ([], (), ()),
        (["jump"], ("jump",), ()),
    ],
)
def test_sglangs_actions_are_the_keys_that_are_held(
    payload: Any, held: tuple[str, ...], tapped: tuple[str, ...]
) -> None:
    assert actions_of(payload, KEYS, "7") == SetActions(id="7", keys=held, tapped=tapped)


@pytest.mark.parametrize(
    "payload", [None, "w", 7, [7], [["w"], 7], {}, {"transitions": [7]}, [["w"]] * 257, {"transitions": "w"}]
)
def test_actions_that_are_none_are_refused_in_one_line(payload: Any) -> None:
    with pytest.raises(ProtocolError) as error:
        actions_of(payload, KEYS, "7")
    assert "\n" not in str(error.value)


def test_sglangs_keys_and_prompt_of_one_event_both_apply_and_keys_go_with_the_connection() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client = Client("sglang", hub)
        await client.open()
        (session,) = service.sessions
        both = {"input_types": ["prompt", "camera_actions"], "prompt": "a storm", "camera_actions": [["w"]]}
        await client.say({"type": "event", "kind": "composite_input", "payload": both, "event_id": 3})
        await client.say({"type": "event", "kind": "camera_actions", "payload": ["w", "i"], "event_id": 4})
        envelope = service.chunk(session)
        assert envelope.prompts[0].text == "a storm"
        assert [each.actions.keys for each in envelope.conditions if each.actions][-1] == ("up", "w")

    play_on(WORLD, play)


@pytest.mark.parametrize(
    ("translation", "rotation", "motion"),
    [
        ((1, 2, 3), (0, 0, 0, 1), (1, 0, 0, 1, 0, 1, 0, -2, 0, 0, 1, 3)),
        # a quarter turn to the right, about the axis that points up: forward becomes right
        ((0, 0, 0), (0, math.sqrt(0.5), 0, math.sqrt(0.5)), (0, 0, 1, 0, 0, 1, 0, 0, -1, 0, 0, 0)),
        # a quarter turn about the axis to the right: theirs turns forward down, and so does ours, where y is down
        ((0, 0, 0), (math.sqrt(0.5), 0, 0, math.sqrt(0.5)), (1, 0, 0, 0, 0, 0, 1, 0, 0, -1, 0, 0)),
    ],
)
def test_vllm_omnis_velocity_is_the_motion_of_each_frame(
    translation: tuple[float, float, float],
    rotation: tuple[float, float, float, float],
    motion: tuple[float, ...],
) -> None:
    event = CameraEvent(mode="velocity", data=CameraData(translation=translation, rotation=rotation))
    control = camera_of(event, "e")
    control.check()
    assert control.motion == pytest.approx(motion, abs=1e-9)


def camera_event(**camera: Any) -> dict[str, Any]:
    event = {"multi_modal_data": {"camera": camera}}
    return {"type": "session.interaction", "interaction": {"event_id": "e", "event": event}}


def test_vllm_omnis_camera_moves_and_what_is_wrong_with_it_is_said() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client = Client("vllm_omni", hub)
        await client.open()
        (session,) = service.sessions
        heard = await client.say(camera_event(mode="velocity", data={"translation": [0, 0, 0.05]}))
        assert [each["type"] for each in heard] == ["session.interaction.queued"]
        assert service.chunk(session).conditions[-1].camera.motion[-1] == 0.05  # type: ignore[union-attr]
        for wrong in (
            {"mode": "target", "data": {}},
            {"mode": "velocity", "data": {"rotation": [1, 1, 1, 1]}},
            {"mode": "velocity", "data": {"translation": [0, 0, 1000]}},
            {"mode": "velocity"},
            {"mode": "velocity", "data": {"actions": ["w"]}},
        ):
            heard = [each for each in await client.say(camera_event(**wrong)) if isinstance(each, dict)]
            failed = [each for each in heard if each["type"] == "error"]
            assert [(each["code"], each["event_id"]) for each in failed] == [("interaction_failed", "e")], (
                wrong
            )
        assert service.chunk(session).conditions[-1].camera.motion[-1] == 0.05  # type: ignore[union-attr]

    play_on(WORLD, play)


def test_a_model_without_a_camera_or_keys_says_so_once() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client = Client("vllm_omni", hub)
        await client.open()
        moving = camera_event(mode="velocity", data={"translation": [0, 0, 0.05]})
        heard = [*await client.say(moving), *await client.say(moving)]
        assert [each["type"] for each in heard] == ["session.note"]
        keys = Client("sglang", hub)
        await keys.open()
        for number in range(2):
            event = {"type": "event", "kind": "camera_actions", "payload": ["w"], "event_id": number}
            assert await keys.say(event) == []

    play_on(NO_CONDITIONS, play)


def test_openais_reference_is_a_forms_file_or_a_data_address() -> None:
    assert _reference(PNG) == _reference({"image_url": ADDRESS}) == _reference(ADDRESS) == PNG
    assert _reference(None) == _reference("") == b""
    for wrong in (
        "https://example.org/a.png",
        {"file_id": "f"},
        {"image_url": "data:image/png;base64,%"},
        7,
        ["a"],
    ):
        with pytest.raises(ProtocolError):
            _reference(wrong)
