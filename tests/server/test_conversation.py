"""What a client may say, when, and what it hears."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from millstream.core.client_messages import MAX_CHUNK, ProtocolError
from millstream.server.access.limits import ClientLimits, TokenBucket
from millstream.server.protocol.conversation import Conversation
from millstream.server.protocol.messages import choose_format
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import Outbox
from millstream.serving.notices import SHUTTING_DOWN, Ended
from tests.server.fakes import FakeService, fake_hub, until

START = {"type": "start", "version": 1, "prompt": "sea"}
GENEROUS = ClientLimits(messages_per_s=1e9, controls_per_s=1e9, frames_per_s=1e9)


class Client:
    """One side of a conversation, without a socket."""

    def __init__(self, hub: SessionHub, limits: ClientLimits = GENEROUS) -> None:
        self.outbox = Outbox()
        self.conversation = Conversation(hub, self.outbox, limits)

    async def say(self, message: Any) -> list[dict[str, Any]]:
        """Everything that is heard once a message was taken."""
        await self.conversation.on_message(
            message if isinstance(message, (str, bytes)) else json.dumps(message)
        )
        for _ in range(5):  # a fake's notices take a turn or two of the loop
            await asyncio.sleep(0)
        return await self.heard()

    async def heard(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(self.outbox):
            said = self.conversation.encode(await self.outbox.pop())
            texts = [said] if isinstance(said, str) else said if isinstance(said, list) else []
            found += [json.loads(text) for text in texts]
        return found

    async def error(self, message: Any) -> str:
        """The code of the one error that this message brings."""
        codes = [heard["code"] for heard in await self.say(message) if heard["type"] == "error"]
        assert len(codes) == 1, f"{message!r} brought {codes}"
        return str(codes[0])


def with_hub(play: Callable[[SessionHub, FakeService], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        service = FakeService(**options)
        hub = fake_hub(service)
        try:
            await asyncio.wait_for(play(hub, service), 120)
        finally:
            await hub.close()
        assert hub.live_sessions == {}

    asyncio.run(main())


def types(heard: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in heard]


def test_a_conversation_from_hello_to_the_end() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(hub)
        (hello,) = await client.heard()
        assert (hello["type"], hello["version"], hello["model"]) == ("hello", 1, "fake")
        assert hello["defaults"]["size"] == "32x32"
        (live,) = await client.say(START | {"formats": ["av2", "webp"], "size": "32x48", "seed": 3})
        assert (live["type"], live["format"], live["config"]["width"], live["config"]["seed"]) == (
            "live",
            "webp",
            48,
            3,
        )
        (queued,) = await client.say({"type": "control", "control": {"type": "cut", "id": "mine"}})
        assert queued == {"type": "receipt", "control_id": "mine", "state": "queued", "chunk_index": 0}
        service.picture(live["session"])
        await until(lambda: len(client.outbox) == 2)
        assert await client.heard() == [queued | {"state": "applied"}]
        assert await client.say({"type": "ping", "t": 1.5}) == [{"type": "pong", "t": 1.5}]
        assert types(await client.say({"type": "stop"})) == ["ended"]

    with_hub(play)


def test_only_an_owner_is_told_that_a_server_which_stops_has_kept_the_session() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        owner = Client(hub)
        viewer = Client(hub)
        live = (await owner.say(START))[-1]
        await viewer.say({"type": "view", "version": 1, "view": live["view"]})

        def told(client: Client, notice: Ended) -> bool:
            return bool(json.loads(client.conversation.encode(notice))["kept"])

        assert not told(owner, SHUTTING_DOWN)
        hub.limits = replace(hub.limits, keep_chunks=2)
        assert told(owner, SHUTTING_DOWN)
        assert not told(viewer, SHUTTING_DOWN), "who only watches cannot bring it back"
        assert not told(owner, Ended(cause="stopped", reason="stopped by its owner"))

    with_hub(play)


def test_a_stop_while_the_session_moves_is_for_the_server_that_it_goes_to() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(hub)
        live_session = hub.live_sessions.find((await client.say(START))[-1]["session"])
        live_session.handoff.prepare()
        stopping = asyncio.ensure_future(client.say({"type": "stop"}))
        await asyncio.sleep(0.05)
        assert not live_session.ended, "it may have gone already"
        live_session.handoff.move(lambda viewer: None)
        assert "ended" not in types(await stopping)
        hub.service.end(live_session.session_id)
        await until(lambda: live_session.ended)
        assert "ended" not in types(await client.heard()), "it goes on elsewhere"

    with_hub(play)


def test_futures_are_shown_to_their_owner_so_many_at_once_and_so_fast() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(hub)
        live = (await client.say(START | {"prompt": "a kite"}))[-1]
        await client.say({"type": "preview"})
        await until(lambda: len(client.outbox) == 1)
        (previews,) = await client.heard()
        assert [bool(future["jpeg"]) for future in previews["futures"]] == [True, True, True, False]
        assert previews["futures"][0]["prompt"] == "a kite at dawn"
        assert previews["note"] == "1 was not made"
        viewer = Client(hub)
        await viewer.say({"type": "view", "version": 1, "view": live["view"]})
        assert await viewer.error({"type": "preview"}) == "read_only"
        assert await client.error({"type": "preview", "prompt": "a storm"}) == "bad_message"
        for _ in range(7):
            if not await client.say({"type": "preview", "prompts": ["a storm"]}):
                await until(lambda: len(client.outbox) == 1)
                await client.heard()
        assert await client.error({"type": "preview"}) == "too_fast"

    with_hub(play)


def test_an_owner_comes_back_and_a_viewer_may_only_watch() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        owner = Client(hub)
        live = (await owner.say(START))[-1]
        owner.conversation.on_disconnect()
        assert service.sessions[live["session"]].viewers == 0
        again = Client(hub)
        viewer = Client(hub)
        assert (await again.say({"type": "attach", "version": 1, "session": live["session"]}))[-1][
            "session"
        ] == live["session"]
        seen = (await viewer.say({"type": "view", "version": 1, "view": live["view"]}))[-1]
        assert (seen["session"], seen["view"]) == ("", live["view"]), (
            "a view link must not give the session away"
        )
        for message in (
            {"type": "control", "control": {"type": "cut"}},
            {"type": "stop"},
            {"type": "save"},
            b"x",
        ):
            assert await viewer.error(message) == "read_only"
        assert (
            await Client(hub).error({"type": "attach", "version": 1, "session": live["view"]}) == "not_found"
        )

    with_hub(play)


def test_every_wrong_word_is_answered_with_its_code_and_the_session_goes_on() -> None:
    wrong: list[tuple[Any, str]] = [
        ("", "bad_message"),
        ("{", "bad_message"),
        ("[]", "bad_message"),
        ("null", "bad_message"),
        ('{"type": "nonsense"}', "bad_message"),
        ('{"type": "control", "control": {"type": "seed", "seed": NaN}}', "bad_message"),
        ('{"type": "ping", "t": 1e999}', "bad_message"),
        ("[" * 100_000, "too_large"),
        ('{"type": "ping", "t": "\\ud800"}', "bad_message"),
        ({"type": "ping", "t": 1, "extra": 2}, "bad_message"),
        ({"type": "control", "control": {"type": "cut", "sharp": True}}, "bad_message"),
        (
            {"type": "control", "control": {"type": "prompt", "prompts": [{"text": "a", "wieght": 2}]}},
            "bad_message",
        ),
        ({"type": "control", "control": {"type": "seed", "seed": "7"}}, "bad_message"),
        ({"type": "control", "control": {"type": "seed", "seed": 10**30}}, "bad_control"),
        ({"type": "control", "control": {"type": "seed", "seed": -1}}, "bad_control"),
        ({"type": "control", "control": {"type": "steps", "steps": [1e300]}}, "bad_control"),
        (
            {"type": "control", "control": {"type": "steps", "steps": [500], "first_steps": [1, 2]}},
            "bad_control",
        ),
        ({"type": "control", "control": {"type": "kv_bias", "kv_bias": 0}}, "bad_control"),
        ({"type": "control", "control": {"type": "prompt", "prompt": "x" * 20_000}}, "bad_control"),
        ({"type": "control", "control": {"type": "prompt", "prompt": "x" * 1_000_000}}, "too_large"),
        (
            '{"type": "control", "control": {"type": "prompt", "prompt": "' + "\u20ac" * 60_000 + '"}}',
            "too_large",
        ),
        ({"type": "control", "control": {"type": "prompt", "prompt": "  "}}, "bad_control"),
        ({"type": "control", "control": {"type": "cut", "id": "x" * 1000}}, "bad_control"),
        ({"type": "control", "control": {"type": "cut"}, "at_chunk": -1}, "bad_message"),
        ({"type": "control", "control": {"type": "cut"}, "at_chunk": MAX_CHUNK + 1}, "bad_message"),
        (START, "bad_state"),
        ({"type": "attach", "version": 1, "session": "me"}, "bad_state"),
        ({"type": "start", "version": 2, "prompt": "sea"}, "bad_version"),
        ({"type": "restore", "version": 1, "snapshot": "../../etc/passwd"}, "bad_state"),
        ({"type": "record", "on": "yes"}, "bad_message"),
        (b"\x00\x01", "bad_state"),
    ]

    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(hub)
        live = (await client.say(START))[-1]
        for message, code in wrong:
            assert await client.error(message) == code, str(message)[:80]
        service.picture(live["session"])
        await until(lambda: len(client.outbox) == 1)
        assert await client.say({"type": "ping", "t": 0})

    with_hub(play)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"type": "start"}, "bad_version"),
        ({"type": "start", "version": "1", "prompt": "sea"}, "bad_version"),
        ({"type": "start", "version": 99, "prompt": "sea", "of": "later"}, "bad_version"),
        ({"type": "start", "version": 1}, "bad_message"),
        (START | {"prompts": [{"text": "sky"}]}, "bad_message"),
        (START | {"size": "big"}, "bad_message"),
        (START | {"size": "17x64"}, "bad_message"),
        (START | {"size": "8192x8192000"}, "bad_message"),
        (START | {"fps": 0}, "bad_message"),
        (START | {"fps": 1e300}, "bad_message"),
        (START | {"steps": []}, "bad_message"),
        (START | {"first_steps": [500, 1000]}, "bad_message"),
        (START | {"window": 10**6}, "bad_message"),
        (START | {"lead_s": -5}, "bad_message"),
        (START | {"lead_s": 1e308}, "bad_message"),
        (START | {"formats": ["av2"]}, "bad_message"),
        (START | {"formats": []}, "bad_message"),
        (START | {"unattended": "walk"}, "bad_message"),
        (START | {"prompts": [{"text": "a", "weight": -1}], "prompt": ""}, "bad_message"),
        ({"type": "start", "version": 1, "prompts": [{"text": "a", "share": 1}]}, "bad_message"),
        ({"type": "control", "control": {"type": "cut"}}, "bad_state"),
        ({"type": "stop"}, "bad_state"),
        ({"type": "save"}, "bad_state"),
        ({"type": "record", "on": True}, "bad_state"),
        (b"binary before anything", "bad_state"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_bad_beginning_is_refused_before_anything_happens(message: Any, code: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(hub)
        assert await client.error(message) == code
        assert service.sessions == {}
        assert (await client.say(START))[-1]["type"] == "live", "and one may try again"

    with_hub(play)


def test_a_refusal_says_why_and_holds_nothing() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        (_, error) = await Client(hub).say(START)
        assert error["code"] == "refused"
        assert "0.10 is free" in error["message"]
        assert hub.live_sessions == {}

    with_hub(play, places=0)


def test_one_who_speaks_too_fast_is_told_so_and_controls_are_counted_apart() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(
            hub, ClientLimits(messages_per_s=0.001, controls_per_s=0.001, burst_s=5000)
        )  # five of each at once
        await client.say(START)
        codes = [await client.say({"type": "ping", "t": n}) for n in range(6)]
        assert types([answer for heard in codes for answer in heard]) == ["pong"] * 4 + ["error"] * 2

    with_hub(play)


def test_a_bucket_lets_its_rate_through_on_average() -> None:
    now = [0.0]
    bucket = TokenBucket(10.0, 5.0, clock=lambda: now[0])
    passed = 0
    for tick in range(1000):
        now[0] = tick / 100
        passed += bucket.try_spend()
    assert 100 <= passed <= 106


def photo(size: tuple[int, int] = (80, 60), kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((*size, 3), 77, np.uint8)).save(file, kind)
    return file.getvalue()


def test_camera_frames_are_probed_scaled_and_pushed() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(hub, ClientLimits(max_frame_pixels=10_000, max_frame_bytes=50_000))
        live = (await client.say(START | {"input": True}))[-1]
        feed = service.sessions[live["session"]].request.feed
        assert feed is not None
        for kind in ("JPEG", "PNG", "WEBP"):
            assert await client.say(photo(kind=kind)) == []
        taken = feed.read(3)
        assert taken is not None
        assert taken[0].shape == (3, 32, 32, 3)
        assert abs(int(taken[0].mean()) - 77) < 3
        assert await client.error(photo((400, 400))) == "too_large"
        assert await client.error(b"\0" * 60_000) == "too_large"
        for rubbish in (b"", b"rubbish", photo()[:200], photo(kind="GIF"), b"RIFF\0\0\0\0WEBPVP8 "):
            assert await client.error(rubbish) == "bad_message"
        assert feed.read(1) is None

    with_hub(play)


def test_a_picture_that_would_unpack_to_gigabytes_is_refused_before_it_is_decoded() -> None:
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    assert len(bomb.getvalue()) < 1_000_000

    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(hub)
        await client.say(START | {"input": True})
        assert await client.error(bomb.getvalue()) in ("too_large", "bad_message")

    with_hub(play)


def test_formats_of_later_versions_are_passed_over() -> None:
    assert choose_format(["av2", "jpeg", "webp"]) == "jpeg"
    with pytest.raises(ProtocolError):
        choose_format(["av2"] * 100 + ["jpeg"])


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"type": "control", "control": {"type": "cut", "id": "mine", "sharp": True}}, "mine"),
    ({"type": "control", "control": {"type": "seed", "seed": "7", "id": "mine"}}, "mine"),
    ({"type": "control", "control": {"type": "nonsense", "id": "mine"}}, "mine"),
    ({"type": "control", "control": {"id": "mine"}}, "mine"),
    ({"type": "control", "control": {"type": "cut", "id": "mine"}, "at_chunk": "soon"}, "mine"),
    ({"type": "control", "control": {"type": "cut", "id": "mine"}, "more": 1}, "mine"),
    ({"type": "contol", "control": {"type": "cut", "id": "mine"}}, "mine"),
    ({"type": "control", "control": {"type": "cut", "id": "m" * 1000, "sharp": True}}, "m" * 128),
    ({"type": "control", "control": {"type": "cut", "id": 7}}, ""),
    ({"type": "control", "control": "cut"}, ""),
]


@pytest.mark.parametrize(("message", "control_id"), MALFORMED)
def test_a_malformed_control_is_answered_with_its_id(message: dict[str, Any], control_id: str) -> None:
    """A client that waits for the answer of each would wait for ever."""

    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(hub)
        await client.say(START)
        (error,) = [heard for heard in await client.say(message) if heard["type"] == "error"]
        assert (error["code"], error["control_id"]) == ("bad_message", control_id)

    with_hub(play)
