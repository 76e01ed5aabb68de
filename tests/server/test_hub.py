"""What the engine tells goes to everybody who watches, in order, once encoded; and nobody is forgotten or kept too long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from millstream.core.controls import Cut, WeightedPrompt
from millstream.core.errors import Overloaded, UnknownSession
from millstream.runtime.notices import Applied, Ended, Live, Waiting
from millstream.server import hub as hubs
from millstream.server import station as stations
from millstream.server.asking import Ask, open_asked
from millstream.server.hub import Hub
from millstream.server.outbox import Outbox, Picture
from millstream.server.station import OpeningBytes, Standing, Station
from tests.server.fakes import TINY, FakeService, fake_hub, until

SEA = (WeightedPrompt("sea"),)


def with_hub(play: Callable[[Hub, FakeService], Awaitable[None]], **limits: float) -> None:
    async def main() -> None:
        service = FakeService()
        hub = fake_hub(service, **limits)
        hub.start()
        try:
            await asyncio.wait_for(play(hub, service), 30)
        finally:
            await hub.close()
        assert hub.stations == {}
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    before = set(threading.enumerate())
    asyncio.run(main())
    assert {thread for thread in set(threading.enumerate()) - before if "millstream" in thread.name} == set()


async def pictures(outbox: Outbox, count: int) -> list[Picture]:
    return [
        item
        for item in await items(outbox, lambda got: sum(isinstance(i, Picture) for i in got) >= count)
        if isinstance(item, Picture)
    ]


async def items(outbox: Outbox, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """What comes out, but for the figures that come every second."""
    found: list[Any] = []
    while not enough(found):
        item = await outbox.take()
        if not isinstance(item, Standing):
            found.append(item)
        if item is None:
            break
    return found


def test_viewers_get_the_same_chunks_each_in_its_format() -> None:
    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        boxes = {format: Outbox() for format in ("jpeg", "raw", "mp4")}
        for format, outbox in boxes.items():
            station.join(format, outbox)
        for fill in (10, 200):
            service.picture(station.session_id, fill=fill)
        for format, outbox in boxes.items():
            found = await pictures(outbox, 2)
            assert [each.info.index for each in found] == [0, 1]
            assert {each.format for each in found} == {format}
        raw = Outbox()
        station.join("raw", raw)
        (last,) = await pictures(raw, 1)
        assert set(last.parts[0]) == {200}

    with_hub(play)


def test_a_chunk_is_encoded_once_for_all_who_watch_in_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    real = stations.encoder_for

    def counting(format: Any, fps: float) -> Any:
        encoder = real(format, fps)
        inner = encoder.encode

        def encode(frames: np.ndarray) -> tuple[bytes, ...]:
            assert "millstream-encode" in threading.current_thread().name, "encoded on the event loop"
            encoded.append(format)
            return inner(frames)

        encoder.encode = encode
        return encoder

    monkeypatch.setattr(stations, "encoder_for", counting)

    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        boxes = [Outbox() for _ in range(6)]
        for number, outbox in enumerate(boxes):
            station.join("jpeg" if number % 2 else "webp", outbox)
        service.picture(station.session_id)
        for outbox in boxes:
            await pictures(outbox, 1)

    with_hub(play)
    assert sorted(encoded) == ["jpeg", "webp"]


def test_somebody_who_comes_late_hears_how_things_stand_and_sees_the_last_chunk_once() -> None:
    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        first = Outbox()
        station.join("mp4", first)
        for _ in range(3):
            service.picture(station.session_id)
        await pictures(first, 3)
        late = Outbox()
        station.join("mp4", late)
        found = await items(late, lambda got: any(isinstance(item, Picture) for item in got))
        assert [type(item) for item in found] == [Live, OpeningBytes, Picture]
        service.picture(station.session_id)
        follow = await items(late, lambda got: bool(got))
        assert found[2].info.index == 2
        assert [type(item) for item in follow] == [Picture]
        assert follow[0].info.index == 3

    with_hub(play)


def test_receipts_come_with_and_before_the_chunk_they_show_in() -> None:
    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        outbox = Outbox()
        station.join("jpeg", outbox)
        assert station.control(Cut(id="mine")).state == "queued"
        service.picture(station.session_id)
        found = await items(outbox, lambda got: any(isinstance(item, Picture) for item in got))
        assert [type(item) for item in found] == [Live, Applied, Picture]
        assert found[1].receipts == found[2].info.receipts
        assert found[2].info.receipts[0].control_id == "mine"
        assert sum(hub.metrics.control_seconds._buckets[i].get() for i in range(len(hub.metrics.control_seconds._buckets))) == 1

    with_hub(play)


def test_words_the_model_does_not_know_are_named_with_the_chunk() -> None:
    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open((WeightedPrompt("a xylophone at sea"), WeightedPrompt("xenon xylophone")), TINY)
        outbox = Outbox()
        station.join("jpeg", outbox)
        service.picture(station.session_id)
        assert (await pictures(outbox, 1))[0].info.unknown == ("xylophone", "xenon")

    with_hub(play)


def test_when_encoding_falls_behind_the_oldest_frames_go_and_every_chunk_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    real = stations.encoder_for

    def slow(format: Any, fps: float) -> Any:
        encoder = real(format, fps)
        inner = encoder.encode
        encoder.encode = lambda frames: (gate.wait(30), inner(frames))[1]
        return encoder

    monkeypatch.setattr(stations, "encoder_for", slow)

    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        outbox = Outbox()
        station.join("jpeg", outbox)
        await until(lambda: station.state is not None)
        service.picture(station.session_id)
        await until(lambda: station._last is not None)  # the first is being encoded
        for _ in range(9):
            service.picture(station.session_id)
        await until(lambda: len(station._inbox) == 9)
        gate.set()
        found = await pictures(outbox, 10)
        assert [each.info.index for each in found] == list(range(10))
        shown = [each.info.index for each in found if each.parts]
        assert set(shown) <= {0, 6, 7, 8, 9}
        assert shown[-1] == 9
        assert found[-1].dropped >= 5

    with_hub(play)


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


def test_two_names_that_differ_and_only_one_steers() -> None:
    async def play(hub: Hub, service: FakeService) -> None:
        names = [(station.session_id, station.view_id) for station in (hub.open(SEA, TINY) for _ in range(20))]
        assert len({name for pair in names for name in pair}) == 40
        assert all(len(name) >= 22 for pair in names for name in pair)
        with pytest.raises(UnknownSession):
            hub.find(names[0][1])
        with pytest.raises(UnknownSession):
            hub.find_view(names[0][0])

    with_hub(play)


def test_watching_is_counted_and_leaving_twice_is_leaving_once() -> None:
    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        viewers = [station.join("jpeg", Outbox()) for _ in range(3)]
        assert service.sessions[station.session_id].viewers == 3
        for viewer in (*viewers, *viewers):
            station.leave(viewer)
        assert service.sessions[station.session_id].viewers == 0

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


def test_a_session_in_line_that_nobody_is_at_loses_its_place_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "TICK_S", 0.01)

    async def play(hub: Hub, service: FakeService) -> None:
        waits, lives = (hub.open(SEA, TINY) for _ in range(2))
        service.sessions[waits.session_id].tell(Waiting(position=1, expected_wait_s=None, reason="full"))
        await until(lambda: waits.session_id not in hub.stations)
        assert lives.session_id in hub.stations

    with_hub(play, abandon_s=1000.0, leave_line_s=0.1)


def test_how_a_session_does_is_told_every_tick_and_only_the_newest_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "TICK_S", 0.01)
    ticks: list[None] = []
    report = Hub._report
    monkeypatch.setattr(Hub, "_report", lambda hub: (ticks.append(None), report(hub))[1])

    async def play(hub: Hub, service: FakeService) -> None:
        outbox = Outbox()
        hub.open(SEA, TINY).join("jpeg", outbox)
        await until(lambda: len(ticks) > 3)
        waiting = [item for item in outbox._items if isinstance(item, Standing)]
        assert len(waiting) == 1
        assert waiting[0].continuity == 1.0

    with_hub(play)


def test_the_last_receipt_of_each_control_can_be_asked_for_and_there_is_an_end_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stations, "MAX_RECEIPTS", 3)

    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        for number in range(4):
            station.control(Cut(id=f"c{number}"))
        assert [each.control_id for each in station.receipts] == ["c1", "c2", "c3"]
        service.picture(station.session_id)
        await until(lambda: all(each.state == "applied" for each in station.receipts))

    with_hub(play)


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


def test_only_controls_that_were_to_show_at_once_count_as_latency() -> None:
    async def play(hub: Hub, service: FakeService) -> None:
        station = hub.open(SEA, TINY)
        station.control(Cut(id="now"))
        station.control(Cut(id="then"), at_chunk=1)
        service.picture(station.session_id)
        await until(lambda: len(station.receipts) == 2 and station.receipts[-1].state == "applied")
        text = hub.metrics.text(service.metrics(), [], backlog=0).decode()
        assert "millstream_control_seconds_count 1.0" in text

    with_hub(play)


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


def test_an_encoder_that_fails_ends_its_session_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = stations.encoder_for

    def broken(format: Any, fps: float) -> Any:
        encoder = real(format, fps)
        if format == "webp":
            encoder.encode = lambda frames: 1 / 0
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
