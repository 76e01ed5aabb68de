"""What the engine tells goes to everybody who watches, in order, once encoded."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from millstream.core.controls import Cut, WeightedPrompt
from millstream.core.errors import UnknownSession
from millstream.core.server_messages import Stats
from millstream.server.sessions import encodings, receipts
from millstream.server.sessions import hub as hubs
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.sessions.viewers import OpeningBytes
from millstream.serving.notices import Applied, Live, Noted
from tests.server.fakes import TINY, FakeService, until
from tests.server.hub_plays import SEA, items, pictures, with_hub


def test_viewers_get_the_same_chunks_each_in_its_format() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        boxes = {format: Outbox() for format in ("jpeg", "raw", "mp4")}
        for format, outbox in boxes.items():
            live_session.join(format, outbox)
        for fill in (10, 200):
            service.picture(live_session.session_id, fill=fill)
        for format, outbox in boxes.items():
            found = await pictures(outbox, 2)
            assert [each.chunk.index for each in found] == [0, 1]
            assert {each.format for each in found} == {format}
        raw = Outbox()
        live_session.join("raw", raw)
        (last,) = await pictures(raw, 1)
        assert set(last.parts[0]) == {200}

    with_hub(play)


def test_who_comes_back_has_every_chunk_since_and_who_is_new_the_last() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        owner = live_session.join("jpeg", lost := Outbox(), owner=True)
        service.picture(live_session.session_id)
        await pictures(lost, 1)
        live_session.remove_viewer(owner)  # while two more are under way
        for _ in range(2):
            service.picture(live_session.session_id)
        await until(lambda: len(live_session._latest) == 3)
        live_session.join("jpeg", back := Outbox(), owner=True, seen=0)
        live_session.join("raw", new := Outbox())
        assert [each.chunk.index for each in await pictures(back, 2)] == [1, 2]
        assert [each.chunk.index for each in await pictures(new, 1)] == [2]

    with_hub(play)


def test_what_is_done_between_chunks_is_heard_after_those_that_came_and_before_those_that_come() -> None:
    """Chunks wait to be encoded, and an answer that does not would overtake them."""

    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        live_session.join("jpeg", outbox := Outbox())
        for number in range(3):
            if number == 2:
                live_session.between_chunks(lambda: outbox.put("the answer"))
            service.picture(live_session.session_id)
        found = await items(outbox, lambda got: sum(isinstance(item, EncodedChunk) for item in got) == 3)
        shown = [
            item.chunk.index if isinstance(item, EncodedChunk) else item
            for item in found
            if not isinstance(item, Live)
        ]
        assert shown == [0, 1, "the answer", 2]

    with_hub(play)


def test_a_chunk_is_encoded_once_for_all_who_watch_in_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    real = encodings.encoder_for

    def counting(format: Any) -> Any:
        encoder = real(format)
        inner = encoder.encode

        def encode(frames: np.ndarray, *, fps: float) -> tuple[bytes, ...]:
            assert "millstream-encode" in threading.current_thread().name, "encoded on the event loop"
            encoded.append(format)
            return inner(frames, fps=fps)

        encoder.encode = encode
        return encoder

    monkeypatch.setattr(encodings, "encoder_for", counting)

    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        boxes = [Outbox() for _ in range(6)]
        for number, outbox in enumerate(boxes):
            live_session.join("jpeg" if number % 2 else "webp", outbox)
        service.picture(live_session.session_id)
        for outbox in boxes:
            await pictures(outbox, 1)

    with_hub(play)
    assert sorted(encoded) == ["jpeg", "webp"]


def test_somebody_who_comes_late_hears_how_things_stand_and_sees_the_last_chunk_once() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        first = Outbox()
        live_session.join("mp4", first)
        for _ in range(3):
            service.picture(live_session.session_id)
        await pictures(first, 3)
        late = Outbox()
        live_session.join("mp4", late)
        found = await items(late, lambda got: any(isinstance(item, EncodedChunk) for item in got))
        assert [type(item) for item in found] == [Live, OpeningBytes, EncodedChunk]
        service.picture(live_session.session_id)
        follow = await items(late, lambda got: bool(got))
        assert found[2].chunk.index == 2
        assert [type(item) for item in follow] == [EncodedChunk]
        assert follow[0].chunk.index == 3

    with_hub(play)


def test_a_note_goes_to_everybody_who_watches_and_to_those_who_come_later() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        outboxes = [Outbox(), Outbox(), Outbox()]
        live_session.join("raw", outboxes[0])
        live_session.join("raw", outboxes[1])
        live_session.tell(Noted(words="the disk is full"))
        await until(lambda: len(live_session.viewers.notes) == 1)
        live_session.join("raw", outboxes[2])
        for outbox in outboxes:
            heard = await items(outbox, lambda got: Noted(words="the disk is full") in got)
            assert heard.count(Noted(words="the disk is full")) == 1
        assert not live_session.ended

    with_hub(play)


def test_receipts_come_with_and_before_the_chunk_they_show_in() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        outbox = Outbox()
        live_session.join("jpeg", outbox)
        assert (await live_session.control(Cut(id="mine"))).state == "queued"
        service.picture(live_session.session_id)
        found = await items(outbox, lambda got: any(isinstance(item, EncodedChunk) for item in got))
        assert [type(item) for item in found] == [Live, Applied, EncodedChunk]
        assert found[1].receipts == found[2].chunk.receipts
        assert found[2].chunk.receipts[0].control_id == "mine"
        assert (
            sum(
                hub.metrics.control_seconds._buckets[i].get()
                for i in range(len(hub.metrics.control_seconds._buckets))
            )
            == 1
        )

    with_hub(play)


def test_words_the_model_does_not_know_and_those_it_reads_as_others_are_named_with_the_chunk() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(
            (WeightedPrompt("a xylophone on seas"), WeightedPrompt("xenon xylophone boats seas")), TINY
        )
        outbox = Outbox()
        live_session.join("jpeg", outbox)
        service.picture(live_session.session_id)
        chunk = (await pictures(outbox, 1))[0].chunk
        assert chunk.unknown == ("xylophone", "xenon")
        assert chunk.understood == (("seas", "sea"), ("boats", "boat"))

    with_hub(play)


def test_when_encoding_falls_behind_the_oldest_frames_go_and_every_chunk_is_still_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()
    real = encodings.encoder_for

    def slow(format: Any) -> Any:
        encoder = real(format)
        inner = encoder.encode
        encoder.encode = lambda frames, *, fps: (gate.wait(30), inner(frames, fps=fps))[1]
        return encoder

    monkeypatch.setattr(encodings, "encoder_for", slow)

    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        outbox = Outbox()
        live_session.join("jpeg", outbox)
        await until(lambda: live_session.status is not None)
        service.picture(live_session.session_id)
        await until(lambda: live_session._latest)  # the first is being encoded
        for _ in range(9):
            service.picture(live_session.session_id)
        await until(lambda: len(live_session._inbox) == 9)
        gate.set()
        found = await pictures(outbox, 10)
        assert [each.chunk.index for each in found] == list(range(10))
        shown = [each.chunk.index for each in found if each.parts]
        assert set(shown) <= {0, 6, 7, 8, 9}
        assert shown[-1] == 9
        assert found[-1].dropped >= 5

    with_hub(play)


def test_two_names_that_differ_and_only_one_steers() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        names = [
            (live_session.session_id, live_session.view_id)
            for live_session in (hub.open(SEA, TINY) for _ in range(20))
        ]
        assert len({name for pair in names for name in pair}) == 40
        assert all(len(name) >= 22 for pair in names for name in pair)
        with pytest.raises(UnknownSession):
            hub.live_sessions.find(names[0][1])
        with pytest.raises(UnknownSession):
            hub.live_sessions.find_view(names[0][0])

    with_hub(play)


def test_watching_is_counted_and_leaving_twice_is_leaving_once() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        viewers = [live_session.join("jpeg", Outbox()) for _ in range(3)]
        assert service.sessions[live_session.session_id].viewers == 3
        for viewer in (*viewers, *viewers):
            live_session.remove_viewer(viewer)
        assert service.sessions[live_session.session_id].viewers == 0

    with_hub(play)


def test_how_a_session_does_is_told_every_tick_and_only_the_newest_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "TICK_S", 0.01)
    ticks: list[None] = []
    report = SessionHub._report
    monkeypatch.setattr(SessionHub, "_report", lambda hub: (ticks.append(None), report(hub))[1])

    async def play(hub: SessionHub, service: FakeService) -> None:
        outbox = Outbox()
        hub.open(SEA, TINY).join("jpeg", outbox)
        await until(lambda: len(ticks) > 3)
        waiting = [item for item in outbox._items if isinstance(item, Stats)]
        assert len(waiting) == 1
        assert waiting[0].continuity == 1.0

    with_hub(play)


def test_the_last_receipt_of_each_control_can_be_asked_for_and_there_is_an_end_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receipts, "MAX_RECEIPTS", 3)

    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        for number in range(4):
            await live_session.control(Cut(id=f"c{number}"))
        assert [each.control_id for each in live_session.receipts.all()] == ["c1", "c2", "c3"]
        service.picture(live_session.session_id)
        await until(lambda: all(each.state == "applied" for each in live_session.receipts.all()))

    with_hub(play)


def test_only_controls_that_were_to_show_at_once_count_as_latency() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        await live_session.control(Cut(id="now"))
        await live_session.control(Cut(id="then"), at_chunk=1)
        service.picture(live_session.session_id)
        await until(
            lambda: (
                len(live_session.receipts.all()) == 2 and live_session.receipts.all()[-1].state == "applied"
            )
        )
        text = hub.metrics.text(service.metrics(), [], backlog=0).decode()
        assert "millstream_control_seconds_count 1.0" in text

    with_hub(play)
