"""How long sessions live in a hub: nobody is forgotten, and nobody is kept too long."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from millstream.core.client_messages import Ask
from millstream.core.errors import Overloaded, UnknownSession, VideoError
from millstream.server.sessions import encodings, viewers
from millstream.server.sessions import hub as hubs
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.sessions.recordings import ActiveRecording
from millstream.serving.notices import Ended, Live, Waiting
from tests.server.fakes import TINY, FakeService, until
from tests.server.hub_plays import SEA, items, pictures, with_hub


def test_the_end_is_the_last_thing_heard_and_the_session_is_gone() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        outbox = Outbox()
        viewer = live_session.join("jpeg", outbox)
        service.picture(live_session.session_id)
        service.end(live_session.session_id, "enough")
        found = await items(outbox, lambda got: None in got)
        assert [type(item) for item in found] == [Live, EncodedChunk, Ended, type(None)]
        await until(lambda: not hub.live_sessions)
        live_session.remove_viewer(viewer)
        known = hub.live_sessions
        for find, name in ((known.find, live_session.session_id), (known.find_view, live_session.view_id)):
            with pytest.raises(UnknownSession):
                find(name)
        with pytest.raises(UnknownSession):
            live_session.join("jpeg", Outbox())

    with_hub(play)


def test_a_session_that_nobody_watches_is_ended_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "TICK_S", 0.01)

    async def play(hub: SessionHub, service: FakeService) -> None:
        kept = hub.open(SEA, TINY)
        left = hub.open(SEA, TINY)
        kept.join("jpeg", Outbox())
        left.remove_viewer(left.join("jpeg", Outbox()))
        await until(lambda: left.session_id not in hub.live_sessions)
        assert list(hub.live_sessions) == [kept.session_id]

    with_hub(play, abandon_s=0.1)


def test_one_that_is_recorded_is_kept_while_its_recording_grows_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that stands still would be kept for ever, and its place with it."""
    monkeypatch.setattr(hubs, "TICK_S", 0.01)

    class FakeRecording:
        broken = False

        def __init__(self) -> None:
            self.fed_at = time.monotonic()

        def add(self, frames: object, fps: float) -> None:
            self.fed_at = time.monotonic()

        async def finish(self) -> None:
            raise VideoError("nothing was written")

    async def play(hub: SessionHub, service: FakeService) -> None:
        grows, stands = (hub.open(SEA, TINY) for _ in range(2))
        for live_session in (grows, stands):
            live_session.recordings.active = ActiveRecording("film", FakeRecording())  # type: ignore[arg-type]

        def still_grows() -> bool:
            service.picture(grows.session_id)
            return stands.session_id not in hub.live_sessions

        await until(still_grows)
        assert list(hub.live_sessions) == [grows.session_id]

    with_hub(play, abandon_s=0.5)


def test_a_recording_ends_as_it_should_when_whoever_ended_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class SlowRecording:
        broken = False

        def __init__(self) -> None:
            self.written = asyncio.Event()

        async def finish(self) -> None:
            await self.written.wait()
            raise VideoError("there was no frame to write")

    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        recording = SlowRecording()
        live_session.recordings.active = ActiveRecording("film", recording)  # type: ignore[arg-type]
        asked = asyncio.ensure_future(live_session.recordings.stop())
        await asyncio.sleep(0.01)
        asked.cancel()
        recording.written.set()
        await until(lambda: "nothing was recorded" in caplog.text)

    with_hub(play)


def test_a_session_in_line_that_nobody_is_at_loses_its_place_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "TICK_S", 0.01)

    async def play(hub: SessionHub, service: FakeService) -> None:
        waits, lives = (hub.open(SEA, TINY) for _ in range(2))
        service.sessions[waits.session_id].tell(Waiting(position=1, expected_wait_s=None, reason="full"))
        await until(lambda: waits.session_id not in hub.live_sessions)
        assert lives.session_id in hub.live_sessions

    with_hub(play, abandon_s=1000.0, leave_line_s=0.1)


def test_one_that_waits_to_come_back_is_kept_as_long_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been live, so its owner may come back to it; only who never began loses a place in line soon."""
    monkeypatch.setattr(hubs, "TICK_S", 0.01)

    async def play(hub: SessionHub, service: FakeService) -> None:
        returning, newcomer = (hub.open(SEA, TINY) for _ in range(2))
        service.picture(returning.session_id)
        for live_session in (returning, newcomer):
            service.sessions[live_session.session_id].tell(
                Waiting(position=1, expected_wait_s=None, reason="full")
            )
        await until(lambda: newcomer.session_id not in hub.live_sessions)
        assert returning.session_id in hub.live_sessions

    with_hub(play, abandon_s=1000.0, leave_line_s=0.1)


def test_a_session_may_give_way_and_the_servers_limits_hold_for_all() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = await hub.open_asked(Ask(prompt="sea", weight=0.25))
        request = service.sessions[live_session.session_id].request
        assert (request.weight, request.idle_s, request.max_life_s, request.max_chunks) == (0.25, 5, 60, 100)

    with_hub(play, idle_s=5, max_life_s=60, max_chunks=100)


def test_there_is_an_end_to_sessions_and_to_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MAX_VIEWERS", 2)

    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        hub.open(SEA, TINY)
        with pytest.raises(Overloaded, match="2 sessions"):
            hub.open(SEA, TINY)
        for _ in range(2):
            live_session.join("jpeg", Outbox())
        with pytest.raises(Overloaded, match="2 watch"):
            live_session.join("jpeg", Outbox())

    with_hub(play, max_sessions=2)


def test_an_owner_is_let_in_however_many_watch_and_whoever_came_last_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(viewers, "MAX_VIEWERS", 3)

    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        guests = [Outbox() for _ in range(3)]
        early, _, late = (live_session.join("jpeg", outbox) for outbox in guests)
        mine = [live_session.join("jpeg", Outbox(), owner=True)]
        assert len(live_session.viewers) == 3
        assert early in live_session.viewers
        assert late not in live_session.viewers
        told = await items(guests[2], lambda got: None in got)
        assert isinstance(told[-2], Ended)
        assert "owner" in told[-2].reason
        mine += [live_session.join("jpeg", Outbox(), owner=True) for _ in range(3)]
        assert set(live_session.viewers) == set(mine[1:]), (
            "with nobody else there, the owner's oldest connection goes"
        )
        with pytest.raises(Overloaded, match="3 watch"):
            live_session.join("jpeg", Outbox())
        assert service.sessions[live_session.session_id].viewers == 3

    with_hub(play)


def test_an_encoder_that_fails_ends_its_session_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = encodings.encoder_for

    def broken(format: Any) -> Any:
        encoder = real(format)
        if format == "webp":
            encoder.encode = lambda frames, *, fps: 1 / 0
        return encoder

    monkeypatch.setattr(encodings, "encoder_for", broken)

    async def play(hub: SessionHub, service: FakeService) -> None:
        good = hub.open(SEA, TINY)
        bad = hub.open(SEA, TINY)
        well = Outbox()
        ill = Outbox()
        good.join("jpeg", well)
        bad.join("webp", ill)
        for live_session in (good, bad):
            service.picture(live_session.session_id)
        assert isinstance((await items(ill, lambda got: None in got))[-2], Ended)
        await until(lambda: list(hub.live_sessions) == [good.session_id])
        assert (await pictures(well, 1))[0].parts
        assert list(service.sessions) == [good.session_id]

    with_hub(play)


def test_closing_the_hub_ends_every_session_in_words() -> None:
    outboxes = [Outbox() for _ in range(3)]

    async def play(hub: SessionHub, service: FakeService) -> None:
        for outbox in outboxes:
            hub.open(SEA, TINY).join("jpeg", outbox)

    with_hub(play)

    async def last(outbox: Outbox) -> Any:
        return (await items(outbox, lambda got: None in got))[-2]

    for outbox in outboxes:
        assert "shutting down" in asyncio.run(last(outbox)).reason


def test_stations_do_not_keep_ended_sessions_frames() -> None:
    held: list[LiveSession] = []

    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        outbox = Outbox()
        live_session.join("jpeg", outbox)
        service.picture(live_session.session_id)
        await pictures(outbox, 1)
        held.append(live_session)

    with_hub(play)
    assert not held[0]._latest
    assert held[0]._encodings._of == {}
