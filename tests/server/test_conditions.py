"""Pictures, keys and the camera, said right and said wrong: one line each, nothing stuck, the stream goes
on."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import math
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from millstream.core.config import NO_CONDITIONS, ActionsConfig, ConditionsConfig, StreamConfig
from millstream.core.controls import AnyControl, Receipt, SetImage
from millstream.core.envelope import Envelope
from millstream.core.errors import VideoError
from millstream.server.access.limits import ClientLimits
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.pictures import PictureFitter
from millstream.serving.notices import Notice
from millstream.serving.session_entry import OpenRequest
from millstream.session.timeline import Timeline, TimelineState
from tests.server.fakes import CARD, FakeService, until
from tests.server.serving import serving, wait_until
from tests.server.test_conversation import START, Client, types
from tests.unit.video_files import moving_frames, write_video

KEYS = ("w", "a", "s", "d", "up", "down", "left", "right")
WORLD = ConditionsConfig(actions=ActionsConfig(keys=KEYS, look=True), camera=True)
STILL = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]


class TimelineService(FakeService):
    """One whose sessions have timelines: what is held, and what a chunk is made under."""

    def __init__(self, takes: ConditionsConfig) -> None:
        super().__init__()
        self.takes = takes
        self.timelines: dict[str, Timeline] = {}

    def open(self, request: OpenRequest, tell: Callable[[Notice], None]) -> None:
        super().open(request, tell)
        self.timelines[request.session_id] = Timeline(
            request.session_id, request.config, request.prompts, takes=self.takes
        )

    def control(self, session_id: str, control: AnyControl, *, at_chunk: int | None = None) -> Receipt:
        self._find(session_id)
        return self.timelines[session_id].queue(control, at_chunk=at_chunk)

    def timeline(self, session_id: str) -> TimelineState | None:  # type: ignore[override]
        return self.timelines[session_id].state()

    def chunk(self, session_id: str) -> Envelope:
        """Plan a chunk, and show it."""
        timeline = self.timelines[session_id]
        assert timeline.absorb(), "it is paused"
        envelope = timeline.plan(call_id=1, context_indices=())
        self._find(session_id).waiting = list(timeline.take_receipts())
        self.picture(session_id)
        return envelope

    def keys(self, session_id: str) -> list[tuple[str, ...]]:
        """Keys that the next chunk's frames are made under."""
        actions = [each.actions for each in self.chunk(session_id).conditions]
        return [each.keys for each in actions if each is not None]


def play_on(takes: ConditionsConfig, play: Callable[[SessionHub, TimelineService], Awaitable[None]]) -> None:
    async def main() -> None:
        service = TimelineService(takes)
        hub = SessionHub(service, replace(CARD, conditions=takes))  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(play(hub, service), 120)
        finally:
            await hub.close()

    asyncio.run(main())


def actions(**fields: Any) -> dict[str, Any]:
    return {"type": "control", "control": {"type": "actions", **fields}}


def camera(**fields: Any) -> dict[str, Any]:
    return {"type": "control", "control": {"type": "camera", "id": "c", **fields}}


def image(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "control", "control": {"type": "image", "id": "i", "image": text(data), **fields}}


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def picture(width: int = 40, height: int = 32, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 40, 10)).save(file, kind)
    return file.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """A PNG whose header says so, and that has next to no pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(64))), (b"IEND", b""))
    chunks = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + chunks


async def one_line(client: Client, message: Any) -> str:
    """The one error that a message brings."""
    said = [heard for heard in await answers(client, message) if heard["type"] == "error"]
    assert len(said) == 1, f"{str(message)[:80]} brought {said}"
    assert "\n" not in said[0]["message"]
    assert said[0]["message"]
    return str(said[0]["message"])


async def answers(client: Client, message: Any) -> list[dict[str, Any]]:
    """What a message brings, also where that takes another thread."""
    heard = await client.say(message)
    while not heard:
        heard = await client.heard()
        await asyncio.sleep(0.001)
    return heard


async def begin(hub: SessionHub) -> tuple[Client, str]:
    client = Client(hub)
    heard = await client.say(START)
    return client, str(heard[-1]["session"])


def test_hello_says_what_steers_the_model() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        (hello,) = await Client(hub).heard()
        assert hello["takes"] == {
            "image": True, "keys": list(KEYS), "look": True, "axes": 0, "camera": True,
        }  # fmt: skip

    play_on(WORLD, play)


def test_keys_are_held_until_they_are_let_go_and_a_short_press_is_not_lost() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        assert types(await client.say(actions(keys=["w"]))) == ["receipt"]
        assert service.keys(session) == [("w",)] * 3
        await client.say(actions(keys=["w", "a"]))
        await client.say(actions(keys=["w"]))
        assert service.keys(session) == [("a", "w"), ("w",), ("w",)]
        assert service.keys(session) == [("w",)] * 3

    play_on(WORLD, play)


def test_keys_of_a_client_that_is_gone_are_released() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        other = Client(hub)
        await other.say({"type": "attach", "version": 1, "session": session})
        await client.say(actions(keys=["w"]))
        assert service.keys(session) == [("w",)] * 3
        other.conversation.on_disconnect()
        assert service.keys(session) == [("w",)] * 3, "another connection of the owner holds nothing"
        client.conversation.on_disconnect()
        await until(lambda: bool(service.timelines[session].due))
        service.chunk(session)
        assert service.keys(session) == [()] * 3

    play_on(WORLD, play)


def test_keys_of_a_client_that_died_with_its_server_are_released_when_it_comes_back() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        await client.say(actions(keys=["w"]))
        service.chunk(session)
        hub.live_sessions[session].keys.__init__()  # type: ignore[misc]  # as on another server
        await Client(hub).say({"type": "attach", "version": 1, "session": session})
        await until(lambda: bool(service.timelines[session].due))
        service.chunk(session)
        assert service.keys(session) == [()] * 3

    play_on(WORLD, play)


def test_a_pause_releases_keys() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        await client.say(actions(keys=["w"]))
        service.chunk(session)
        await client.say({"type": "control", "control": {"type": "pause"}})
        assert not service.timelines[session].absorb()
        await client.say({"type": "control", "control": {"type": "resume"}})
        service.chunk(session)
        assert service.keys(session) == [()] * 3

    play_on(WORLD, play)


def test_a_thousand_presses_are_one_control_a_chunk_and_too_many_are_refused_in_one_line_each() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        for number in range(1000):
            pressed = actions(keys=[KEYS[number % 2]], look=[1, 0])
            await client.conversation.on_message(json.dumps(pressed))
        assert len(service.timelines[session].due) == 1
        assert set(types(await client.heard())) == {"receipt"}
        envelope = service.chunk(session)
        first = envelope.conditions[0].actions
        assert first is not None
        assert set(first.keys) == {"w", "a"}
        assert sum(each.actions.look[0] for each in envelope.conditions if each.actions) == pytest.approx(180)
        assert service.keys(session) == [("a",)] * 3

        slow = Client(hub, ClientLimits())
        await slow.say({"type": "attach", "version": 1, "session": session})
        for _ in range(1000):
            await slow.conversation.on_message('{"type":"control","control":{"type":"actions","keys":["s"]}}')
        heard = await slow.heard()
        refused = [each for each in heard if each["type"] == "error"]
        assert {each["code"] for each in refused} == {"too_fast"}
        taken = ClientLimits().messages_per_s * ClientLimits().burst_s
        assert 1000 - 2 * taken < len(refused) <= 1000 - taken + 1
        assert service.keys(session)[-1] == ("s",)

    play_on(WORLD, play)


def test_receipts_of_keys_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        outbox_begins = len(caplog.messages)
        for number in range(50):
            await client.say(actions(keys=["w"] if number % 2 else []))
            service.chunk(session)
        await until(lambda: hub.live_sessions[session].last_chunk is not None)
        await client.heard()
        assert not [words for words in caplog.messages[outbox_begins:] if "applied" in words]

    with caplog.at_level(logging.INFO, logger="millstream"):
        play_on(WORLD, play)


def test_a_key_is_timed_until_its_chunk_is_handed_to_the_viewer() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        live_session = hub.live_sessions[session]
        now = [0.0]
        hub._parts.clock = lambda: now[0]
        service.chunk(session)
        await client.say(actions(keys=["w"]))
        now[0] = 0.25
        await client.say(actions(keys=["w"], look=[3, 0]))
        now[0] = 1.0
        service.chunk(session)
        await until(lambda: live_session.key_ms is not None)
        assert live_session.key_ms == 1000, "from the oldest change that the chunk is the first to show"
        await client.say(actions(keys=["w"]))
        now[0] = 5.0
        service.chunk(session)
        service.chunk(session)
        await until(lambda: live_session.last_chunk is not None and live_session.last_chunk.index == 3)
        assert live_session.key_ms == 1000, "what changes nothing shows nowhere"
        told = hub.metrics.text(service.metrics(), [], backlog=0).decode()
        assert "millstream_key_seconds_count 1.0" in told

    play_on(WORLD, play)


def test_a_model_without_keys_says_so_and_goes_on() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        assert "takes no keys" in await one_line(client, actions(keys=["w"]))
        assert "takes no camera" in await one_line(client, camera(motion=STILL))
        assert service.chunk(session).conditions == ()

    play_on(NO_CONDITIONS, play)


def test_a_key_that_means_nothing_to_the_model_is_named_once() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, _ = await begin(hub)
        heard = await client.say(actions(keys=["q", "w"]))
        heard += await client.say(actions(keys=["e"]))
        notes = [message["message"] for message in heard if message["type"] == "note"]
        assert notes == ["q means nothing to this model; its keys are w, a, s, d, up, down, left, right"]

    play_on(WORLD, play)


BAD_ACTIONS = (
    {"keys": ["w"] * 17},
    {"keys": ["w" * 17]},
    {"keys": [""]},
    {"keys": ["ü"]},
    {"keys": "w"},
    {"look": [1]},
    {"look": [1e400, 0]},
    {"axes": [2]},
    {"axes": [0] * 9},
    {"t": "now"},
    {"held": ["w"]},
)
BAD_CAMERAS = (
    {"motion": [1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]},
    {"motion": [-1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]},
    {"motion": [0] * 12},
    {"motion": STILL[:11]},
    {"motion": [1, 0, 0, 1000, 0, 1, 0, 0, 0, 0, 1, 0]},
    {"motion": [math.nan, *STILL[1:]]},
    {"motion": [math.inf, *STILL[1:]]},
    {"path": [STILL] * 257},
    {"path": [STILL, [0] * 12]},
    {"lens": [0, 1, 0, 0]},
    {"lens": [1, 1, 9, 0]},
)


def test_keys_and_poses_that_cannot_be_are_refused_and_change_nothing() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        await client.say(actions(keys=["w"]))
        for fields in BAD_ACTIONS:
            await one_line(client, actions(**fields))
        for fields in BAD_CAMERAS:
            await one_line(client, camera(**fields))
        assert service.keys(session) == [("w",)] * 3
        moved = service.timelines[session].steering
        assert (moved.motion, moved.path) == (tuple(STILL), ())

    play_on(WORLD, play)


def test_one_who_only_watches_steers_nothing_and_no_picture_of_theirs_is_read() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        _, session = await begin(hub)
        live = hub.live_sessions[session]
        viewer = Client(hub)
        await viewer.say({"type": "view", "version": 1, "view": live.view_id})
        large = picture(1500, 1500, "BMP")[: 3 * 2**20]
        for message in (actions(keys=["w"]), camera(motion=STILL), image(picture()), image(large)):
            assert await viewer.error(message) == "read_only"
        unreadable = '{"image":' + " " * 200_000
        assert await viewer.error(unreadable) == "read_only"
        assert service.keys(session) == [()] * 3

    play_on(WORLD, play)


def test_a_picture_is_fitted_and_what_became_of_it_is_told() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        heard = await answers(client, image(picture(400, 100), mode="blend", chunks=2))
        while types(heard) != ["receipt", "note"]:
            assert len(heard) < 2, heard
            heard += await client.heard()
            await asyncio.sleep(0.001)
        assert "width is cut away" in heard[1]["message"]
        (control,) = service.timelines[session].due
        assert isinstance(control, SetImage)
        assert control.image == b""
        assert control.picture is not None
        assert (control.picture.height, control.picture.width) == (32, 32)
        assert len(control.picture.pixels()) == 32 * 32 * 3

    play_on(NO_CONDITIONS, play)


def test_a_session_begins_from_a_picture_of_several_megabytes() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client = Client(hub)
        await client.heard()
        large = picture(1300, 1000, "BMP")
        assert len(large) > 3 * 2**20
        (live,) = await answers(client, START | {"image": text(large), "fit": "pad", "size": "32x48"})
        begun = hub.live_sessions[live["session"]].request.picture
        assert begun is not None
        assert (begun.height, begun.width) == (32, 48)

    play_on(NO_CONDITIONS, play)


def test_pictures_that_cannot_be_are_refused_in_one_line_and_the_stream_goes_on() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, session = await begin(hub)
        whole = picture(300, 200, "JPEG")
        assert "not a picture" in await one_line(client, image(b"not a picture at all"))
        assert "megapixels" in await one_line(client, image(huge_png(50_000, 50_000)))
        assert await one_line(client, image(huge_png(50_000, 1)))
        assert "cut short" in await one_line(client, image(whole[: len(whole) // 2]))
        assert "needs a picture" in await one_line(client, image(b""))
        assert await client.error(image(bytes(5 * 2**20))) == "too_large"
        assert await client.error('{"type":"ping","t":1' + " " * 200_000 + "}") == "too_large"
        assert "base64" in await one_line(
            client, {"type": "control", "control": {"type": "image", "image": "%"}}
        )
        ready = {"height": 32, "width": 32, "rgb": text(zlib.compress(bytes(32 * 32 * 3)))}
        own = {"type": "control", "control": {"type": "image", "picture": ready}}
        assert "send the file as image" in await one_line(client, own)
        assert service.timelines[session].due == ()
        assert service.chunk(session).chunk_index == 0

        late = Client(hub)
        await late.heard()
        assert await late.error(START | {"image": text(b"nothing")})
        assert late.conversation.state == "new"
        assert types(await late.say(START)) == ["live"]

    play_on(NO_CONDITIONS, play)


def test_pictures_come_no_faster_than_their_budget() -> None:
    async def play(hub: SessionHub, service: TimelineService) -> None:
        client, _ = await begin(hub)
        small = image(picture(8, 8))
        codes = [(await answers(client, small))[0].get("code") for _ in range(12)]
        assert codes[:8] == [None] * 8
        assert codes[-1] == "too_fast"

    play_on(NO_CONDITIONS, play)


def test_a_branch_begins_with_no_keys_held_and_its_parent_goes_on_with_its_own() -> None:
    with serving(model=("wan-tiny-world", "random")) as server, server.client() as client:
        parent = client.start()["session"]
        client.say(actions(keys=["w"]))
        client.hear("receipt", control_id="actions", state="applied")
        client.say({"type": "fork"})
        branch = client.hear("forked")["session"]
        service = server.hub.service
        wait_until(lambda: service.timeline(branch) is not None, "the branch is there")
        states = [service.timeline(name) for name in (parent, branch)]
        assert [None if state is None else state.steering.keys for state in states] == [("w",), ()]


def test_a_server_decodes_less_of_a_clip_than_a_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = write_video(tmp_path / "clip.mp4", moving_frames(20, 64, 96)).read_bytes()
    monkeypatch.setattr("millstream.server.sessions.pictures.MAX_CLIP_PIXELS", 10 * 64 * 96)

    async def fit() -> None:
        fitter = PictureFitter()
        fitter.start()
        try:
            await fitter.fit(clip, StreamConfig(height=64, width=96), "crop")
        finally:
            fitter.close()

    with pytest.raises(VideoError, match=r"more than 10 frames of 64x96; trim it"):
        asyncio.run(fit())
