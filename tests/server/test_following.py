"""A client that goes where its session goes: what it says again there, and what it says that it has."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from millstream.client import following
from millstream.client.chunk import ClientChunk
from millstream.client.following import FollowedConnection
from millstream.core.client_messages import (
    VERSION,
    AnyClientMessage,
    End,
    Fork,
    Opening,
    Record,
    Save,
    Start,
    Steer,
)
from millstream.core.controls import SetPrompt
from millstream.core.errors import ProtocolBroken
from millstream.core.server_messages import (
    ChunkHeader,
    ErrorMessage,
    LiveMessage,
    MovedMessage,
    Saved,
    ServerMessage,
)
from millstream.server.access.limits import ClientLimits
from millstream.server.protocol.conversation import hello
from millstream.server.protocol.messages import encode, with_header
from tests.server.fakes import FakeService, fake_hub

LIVE = LiveMessage(session="mine", view="v", format="raw", config={}, paused=False, note="")
CHUNK = ChunkHeader(
    index=4,
    epoch=0,
    media_s=0.0,
    fps=2.0,
    frames=12,
    format="raw",
    sizes=(),
    prompts=(),
    unknown=(),
    receipts=(),
    total_ms=1.0,
    phases_ms={},
    late_s=0.0,
    dropped=0,
)


class FakeLine:
    """A connection to one server: what that says, and what it is told."""

    def __init__(self, *says: ServerMessage) -> None:
        self.says: list[str | bytes] = [
            with_header(each) if isinstance(each, ChunkHeader) else encode(each) for each in says
        ]
        self.told: list[dict[str, Any]] = []
        self.closed = False

    async def receive(self) -> str | bytes:
        return self.says.pop(0)

    async def say(self, message: AnyClientMessage) -> None:
        await self.say_text(msgspec.json.encode(message))

    async def say_text(self, text: str | bytes) -> None:
        self.told.append(msgspec.json.decode(text))

    async def close(self) -> None:
        self.closed = True


def test_who_follows_a_session_says_what_it_has_and_says_again_what_was_not_answered() -> None:
    async def play() -> None:
        hub = fake_hub(FakeService())
        greeting = hello(replace(hub.card, moves=True), ClientLimits())
        here = FakeLine(
            greeting, LIVE, CHUNK, Saved(snapshot="s", bytes=1), MovedMessage(url="there", ticket="t")
        )
        there = FakeLine(greeting, LIVE)

        async def open_at(url: str, ticket: str, opening: Opening) -> Any:
            assert (url, ticket) == ("there", "t")
            return there

        line: Any = here
        followed = FollowedConnection(open_at, line)
        await followed.hear()
        await followed.say(Start(version=VERSION, prompt="sea"))
        await followed.hear()
        await followed.hear()
        await followed.say(Steer(control=SetPrompt(prompt="a storm", id="mine")))
        await followed.say(Save())
        await followed.say(Record(on=True))
        await followed.hear()  # the answer to the save
        await followed.say(Fork(at_chunk=3))
        await followed.say(End())
        await followed.hear()
        attach, steer, record, fork, stop = there.told
        assert (record, fork) == ({"type": "record", "on": True}, {"type": "fork", "at_chunk": 3}), (
            "not the save"
        )
        assert (attach["type"], attach["seen"]) == ("attach", 4)
        assert attach["ahead_s"] == pytest.approx(6.0, abs=1.0), "twelve frames, two a second"
        assert (steer["control"]["id"], steer["again"]) == ("mine", True)
        assert stop == {"type": "stop"}
        await hub.close()

    asyncio.run(play())


def test_an_older_server_is_asked_again_without_what_it_does_not_know() -> None:
    refusal = ErrorMessage(
        code="bad_message", message="cannot read the message: Object contains unknown field `ahead_s`"
    )

    async def play() -> None:
        hub = fake_hub(FakeService())
        greeting = hello(replace(hub.card, moves=True), ClientLimits())
        here = FakeLine(greeting, LIVE, CHUNK, MovedMessage(url="there", ticket="t"))
        there = FakeLine(greeting, refusal, LIVE, MovedMessage(url="further", ticket="t"))
        further = FakeLine(greeting, LIVE)

        async def open_at(url: str, ticket: str, opening: Opening) -> Any:
            return {"there": there, "further": further}[url]

        line: Any = here
        followed = FollowedConnection(open_at, line)
        await followed.hear()
        await followed.say(Start(version=VERSION, prompt="sea"))
        for heard in (LIVE, CHUNK, LIVE, LIVE):
            assert type(await followed.hear()) is (ClientChunk if heard is CHUNK else LiveMessage)
        first, second = there.told
        assert first.pop("ahead_s") > 0
        assert first == second, "all else is the same"
        assert [attach.get("ahead_s") for attach in further.told] == [None]
        await hub.close()

    asyncio.run(play())


def test_who_closes_while_it_goes_elsewhere_asks_nothing_there() -> None:
    async def play() -> None:
        hub = fake_hub(FakeService())
        greeting = hello(replace(hub.card, moves=True), ClientLimits())
        here = FakeLine(greeting, LIVE, MovedMessage(url="there", ticket="t"))
        there = FakeLine(greeting, LIVE)

        async def open_at(url: str, ticket: str, opening: Opening) -> Any:
            await followed.close()
            return there

        line: Any = here
        followed = FollowedConnection(open_at, line)
        await followed.hear()
        await followed.say(Start(version=VERSION, prompt="sea"))
        await followed.hear()
        with pytest.raises(ProtocolBroken, match="was closed"):
            await followed.hear()
        assert there.closed
        assert there.told == []
        await hub.close()

    asyncio.run(play())


def test_what_is_said_while_a_session_is_away_waits_and_arrives_in_the_order_it_was_said() -> None:
    async def play() -> None:
        hub = fake_hub(FakeService())
        greeting = hello(replace(hub.card, moves=True), ClientLimits())
        here = FakeLine(greeting, LIVE, CHUNK, MovedMessage(url="there", ticket="t"))
        there = FakeLine(greeting, LIVE)

        async def open_at(url: str, ticket: str, opening: Opening) -> Any:
            await followed.say(Steer(control=SetPrompt(prompt="while it connects", id="second")))
            return there

        async def say_as_others_are_said(text: str | bytes) -> None:
            told.append(msgspec.json.decode(text))
            if len(told) == 2:
                await followed.say(Steer(control=SetPrompt(prompt="while others are said", id="last")))

        line = here
        told = there.told
        followed = FollowedConnection(open_at, line)  # type: ignore[arg-type]
        there.say_text = say_as_others_are_said  # type: ignore[method-assign]
        await followed.hear()
        await followed.say(Start(version=VERSION, prompt="sea"))
        await followed.hear()
        await followed.hear()
        await followed.say(Steer(control=SetPrompt(prompt="before", id="first")))
        await followed.say(Save())
        await followed.hear()
        attach, *said = told
        assert (attach["type"], attach["seen"]) == ("attach", 4), "before anything else"
        assert [each.get("control", each).get("id", each["type"]) for each in said] == [
            "first",
            "save",
            "second",
            "last",
        ]
        assert [each.get("again", False) for each in said] == [True, False, False, False]
        await hub.close()

    asyncio.run(play())


def test_a_line_that_says_nothing_of_a_session_that_was_lost_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "SILENT_S", 0.01)
    monkeypatch.setattr(following, "PATIENCE_S", 0.2)

    class SilentLine(FakeLine):
        async def receive(self) -> str | bytes:
            if not self.says:
                await asyncio.sleep(3600)
            return await super().receive()

    async def play() -> None:
        hub = fake_hub(FakeService())
        greeting = hello(replace(hub.card, moves=True), ClientLimits())
        asked: list[str] = []

        async def open_at(url: str, ticket: str, opening: Opening) -> Any:
            asked.append(url)
            return SilentLine(greeting)

        line: Any = SilentLine(greeting, LIVE, MovedMessage(url="there", ticket="t"))
        followed = FollowedConnection(open_at, line)
        await followed.hear()
        await followed.say(Start(version=VERSION, prompt="sea"))
        await followed.hear()
        with pytest.raises(ProtocolBroken, match="nothing was heard of the session"):
            await asyncio.wait_for(followed.hear(), 60)
        assert asked[:2] == ["there", ""], "the first address is asked where it is"
        await hub.close()

    asyncio.run(play())
