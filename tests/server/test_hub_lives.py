"""How long sessions live in a hub: nobody is forgotten, and nobody is kept too long."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from millstream.core.errors import Overloaded, UnknownSession, VideoError
from millstream.core.messages import Ask
from millstream.runtime.notices import Ended, Live, Waiting
from millstream.server import hub as hubs
from millstream.server import station as stations
from millstream.server.asking import open_asked
from millstream.server.hub import Hub
from millstream.server.outbox import Outbox, Picture
from millstream.server.station import Station, Tape
from tests.server.fakes import TINY, FakeService, until
from tests.server.hub_plays import SEA, items, pictures, with_hub


def test_the_end_is_the_last_thing_heard_and_the_station_is_gone() -> None:
    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        outbox = Outbox()
        viewer = station.join("jpeg", outbox)
        service.picture(station.session_id)
        service.end(station.session_id, "enough")
        found = await items(outbox, lambda got: None in got)
        assert [type(item) for item in found] == [Live, Picture, Ended, type(None)]
        await until(lambda: not hub.stations)
        station.leave(viewer)
        for find, name in ((hub.find, station.session_id), (hub.find_view, station.view_id)):
            with pytest.raises(UnknownSession):
                find(name)
        with pytest.raises(UnknownSession):
            station.join("jpeg", Outbox())

    with_hub(play)


def test_a_session_that_nobody_watches_is_ended_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "TICK_S", 0.01)

    async def play(hub: Hub, service: FakeService) -> None:
        kept, left = hub.open(SEA, TINY), hub.open(SEA, TINY)
        kept.join("jpeg", Outbox())
        left.leave(left.join("jpeg", Outbox()))
        await until(lambda: left.session_id not in hub.stations)
        assert list(hub.stations) == [kept.session_id]

    with_hub(play, abandon_s=0.1)


def test_one_that_is_recorded_is_kept_while_its_recording_grows_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
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

    async def play(hub: Hub, service: FakeService) -> None:
        grows, stands = (hub.open(SEA, TINY) for _ in range(2))
        for station in (grows, stands):
            station.tape = Tape("film", FakeRecording())  # type: ignore[arg-type]

        def still_grows() -> bool:
            service.picture(grows.session_id)
            return stands.session_id not in hub.stations

        await until(still_grows)
        assert list(hub.stations) == [grows.session_id]

    with_hub(play, abandon_s=0.5)


def test_a_session_in_line_that_nobody_is_at_loses_its_place_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "TICK_S", 0.01)

    async def play(hub: Hub, service: FakeService) -> None:
        waits, lives = (hub.open(SEA, TINY) for _ in range(2))
        service.sessions[waits.session_id].tell(Waiting(position=1, expected_wait_s=None, reason="full"))
        await until(lambda: waits.session_id not in hub.stations)
        assert lives.session_id in hub.stations

    with_hub(play, abandon_s=1000.0, leave_line_s=0.1)


def test_one_that_waits_to_come_back_is_kept_as_long_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been live, so its owner may come back to it; only who never began loses a place in line soon."""
    monkeypatch.setattr(hubs, "TICK_S", 0.01)

    async def play(hub: Hub, service: FakeService) -> None:
        returning, newcomer = (hub.open(SEA, TINY) for _ in range(2))
        service.picture(returning.session_id)
        for station in (returning, newcomer):
            service.sessions[station.session_id].tell(Waiting(position=1, expected_wait_s=None, reason="full"))
        await until(lambda: newcomer.session_id not in hub.stations)
        assert returning.session_id in hub.stations

    with_hub(play, abandon_s=1000.0, leave_line_s=0.1)


def test_a_session_may_give_way_and_the_servers_limits_hold_for_all() -> None:
    async def play(hub: Hub, service: FakeService) -> None:
        station = open_asked(hub, Ask(prompt="sea", weight=0.25))
        request = service.sessions[station.session_id].request
        assert (request.weight, request.idle_s, request.max_life_s, request.max_chunks) == (0.25, 5, 60, 100)

    with_hub(play, idle_s=5, max_life_s=60, max_chunks=100)


def test_there_is_an_end_to_sessions_and_to_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stations, "MAX_VIEWERS", 2)

    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        hub.open(SEA, TINY)
        with pytest.raises(Overloaded, match="2 sessions"):
            hub.open(SEA, TINY)
        for _ in range(2):
            station.join("jpeg", Outbox())
        with pytest.raises(Overloaded, match="2 watch"):
            station.join("jpeg", Outbox())

    with_hub(play, max_sessions=2)


def test_an_owner_is_let_in_however_many_watch_and_whoever_came_last_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stations, "MAX_VIEWERS", 3)

    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        guests = [Outbox() for _ in range(3)]
        early, _, late = (station.join("jpeg", outbox) for outbox in guests)
        mine = [station.join("jpeg", Outbox(), owner=True)]
        assert len(station.viewers) == 3
        assert early in station.viewers
        assert late not in station.viewers
        told = await items(guests[2], lambda got: None in got)
        assert isinstance(told[-2], Ended)
        assert "owner" in told[-2].reason
        mine += [station.join("jpeg", Outbox(), owner=True) for _ in range(3)]
        assert station.viewers == set(mine[1:]), "with nobody else there, the owner's oldest connection goes"
        with pytest.raises(Overloaded, match="3 watch"):
            station.join("jpeg", Outbox())
        assert service.sessions[station.session_id].viewers == 3

    with_hub(play)


def test_an_encoder_that_fails_ends_its_session_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = stations.encoder_for

    def broken(format: Any) -> Any:
        encoder = real(format)
        if format == "webp":
            encoder.encode = lambda frames, *, fps: 1 / 0
        return encoder

    monkeypatch.setattr(stations, "encoder_for", broken)

    async def play(hub: Hub, service: FakeService) -> None:
        good, bad = hub.open(SEA, TINY), hub.open(SEA, TINY)
        well, ill = Outbox(), Outbox()
        good.join("jpeg", well)
        bad.join("webp", ill)
        for station in (good, bad):
            service.picture(station.session_id)
        assert isinstance((await items(ill, lambda got: None in got))[-2], Ended)
        await until(lambda: list(hub.stations) == [good.session_id])
        assert (await pictures(well, 1))[0].parts
        assert list(service.sessions) == [good.session_id]

    with_hub(play)


def test_closing_the_hub_ends_every_session_in_words() -> None:
    outboxes = [Outbox() for _ in range(3)]

    async def play(hub: Hub, service: FakeService) -> None:
        for outbox in outboxes:
            hub.open(SEA, TINY).join("jpeg", outbox)

    with_hub(play)

    async def last(outbox: Outbox) -> Any:
        return (await items(outbox, lambda got: None in got))[-2]

    for outbox in outboxes:
        assert "shutting down" in asyncio.run(last(outbox)).reason


def test_stations_do_not_keep_ended_sessions_frames() -> None:
    held: list[Station] = []

    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        outbox = Outbox()
        station.join("jpeg", outbox)
        service.picture(station.session_id)
        await pictures(outbox, 1)
        held.append(station)

    with_hub(play)
    assert held[0]._last is None
    assert held[0]._encodings == {}
