"""A served mesh works while pictures are made, and nobody is told anything else than chunk by chunk. The mesh
is a fake."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millstream.core.conditions import Picture
from millstream.core.controls import (
    AnyControl,
    Cut,
    Pause,
    Resume,
    SetImage,
    SetPrompt,
    SetSteps,
    SetWindow,
    Stop,
)
from millstream.engine.engine import Engine
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Applied
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest, geometry
from millstream.session.chunk import Chunk
from millstream.session.feed import LiveFeed
from millstream.session.journal import JournalWriter, read_journal
from millstream.session.session import Session
from millstream.wire.parcel import Delivery, Parcel
from tests.unit.fake_mesh import FakeMesh, Viewer
from tests.unit.serving.test_service import BYTES, PATIENCE_S, request

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = dict(height=16, width=32, window=6, fps=240.0)


@contextmanager
def serving(engine: Engine, *, batch: int = 1) -> Iterator[Service]:
    admission = AdmissionConfig(memory_bytes=100 * BYTES)
    service = Service(engine, admission=admission, session_bytes=lambda config: BYTES, batch=batch)
    service.table.admission.times.add(
        geometry(engine.spec, engine.stream_config(**SMALL)), 1e-6
    )  # all may come in
    service.start()
    try:
        yield service
    finally:
        service.close()
        assert service.failure is None
        assert engine.generator.caches == {}


def ask(engine: Engine, name: str, **changes: Any) -> OpenRequest:
    """A session of four chunks that may be so far ahead of its viewer that its next chunk may always
    leave."""
    return request(engine, name, **(SMALL | dict(unattended="run", max_chunks=4, lead_s=60.0) | changes))


def join(service: Service, engine: Engine, mesh: FakeMesh, name: str = "a", **changes: Any) -> Viewer:
    viewer = Viewer(name, mesh.events)
    service.open(ask(engine, name, **changes), viewer)
    return viewer


def alone(
    engine: Engine, chunks: int = 4, *, controls: Sequence[tuple[AnyControl, int]] = (), **changes: Any
) -> list[Chunk]:
    """What a session is by itself."""
    with engine.session("sea", config=engine.stream_config(**(SMALL | changes))) as session:
        for control, at_chunk in controls:
            session.control(control, at_chunk=at_chunk)
        return list(session.stream(chunks))


def same(found: Sequence[Chunk], expected: Sequence[Chunk]) -> bool:
    """To the bit, pictures among it."""
    return len(found) == len(expected) and all(
        (one.index, one.epoch, one.digest) == (other.index, other.epoch, other.digest)
        and np.array_equal(one.frames, other.frames)
        for one, other in zip(found, expected, strict=True)
    )


def test_the_next_chunk_leaves_before_the_last_ones_pictures_are_made(engine: Engine, mesh: FakeMesh) -> None:
    with serving(engine) as service:
        viewer = join(service, engine, mesh)
        assert viewer.ended().cause == "limit"
    expected = (
        "send a0, have a0, send a1, show a0, have a1, send a2, show a1, have a2, send a3, show a2, "
        "have a3, show a3"
    )
    assert mesh.events == expected.split(", ")
    assert same(viewer.chunks, alone(engine))


def test_a_generator_in_this_process_has_nothing_to_overlap_with(engine: Engine, mesh: FakeMesh) -> None:
    def post(parcels: Sequence[Parcel]) -> object:
        mesh.events.append(f"send a{parcels[0].envelope.chunk_index}")
        return mesh.local.post(parcels)

    mesh.post = post  # type: ignore[method-assign, assignment]
    with serving(engine) as service:
        join(service, engine, mesh, max_chunks=3).ended()
    assert mesh.events == ["send a0", "show a0", "send a1", "show a1", "send a2", "show a2"]


def test_pictures_of_one_session_are_made_while_the_mesh_works_for_another(
    engine: Engine, mesh: FakeMesh
) -> None:
    gate = mesh.hold("a0")
    with serving(engine) as service:
        viewers = {"a": join(service, engine, mesh, seed=1)}
        assert gate.reached.wait(PATIENCE_S)
        viewers["b"] = join(service, engine, mesh, "b", seed=2)
        gate.open.set()
        for viewer in viewers.values():
            viewer.ended()
    between = [
        (before, after)
        for before, after in zip(mesh.events, mesh.events[1:], strict=False)
        if after.startswith("show")
    ]
    assert any(before.startswith("send b") and after.startswith("show a") for before, after in between)
    assert any(before.startswith("send a") and after.startswith("show b") for before, after in between)
    for seed, viewer in enumerate(viewers.values(), start=1):
        assert same(viewer.chunks, alone(engine, seed=seed))


@pytest.mark.parametrize("anchor", ["latent", "decoded"])
def test_an_anchor_is_made_before_the_chunk_that_is_built_on_it_and_changes_no_bit(
    engine: Engine, mesh: FakeMesh, anchor: str
) -> None:
    with serving(engine) as service:
        viewer = join(service, engine, mesh, anchor=anchor, max_chunks=5)
        viewer.ended()
    assert mesh.order("have a2", "send a3", "show a2", "have a3")
    assert same(viewer.chunks, alone(engine, 5, anchor=anchor))


@pytest.mark.parametrize(
    "control",
    [
        Cut(),
        SetPrompt(prompt="hills", mode="cut"),
        SetPrompt(prompt="hills", mode="recompute"),
        SetPrompt(prompt="hills", mode="blend", chunks=2),
        SetSteps(steps=(1000.0, 500.0)),
        SetWindow(window=9),
    ],
)
def test_a_control_that_comes_in_flight_applies_at_the_next_chunk_once_the_last_is_shown(
    engine: Engine, mesh: FakeMesh, control: AnyControl
) -> None:
    gate = mesh.hold("a1")
    with serving(engine) as service:
        viewer = join(service, engine, mesh)
        assert gate.reached.wait(PATIENCE_S)
        queued = service.control("a", control)
        gate.open.set()
        viewer.ended()
    assert queued.chunk_index == 2
    assert mesh.order("have a1", "show a1", "send a2", "have a2", "send a3", "show a2")
    assert [[receipt.chunk_index for receipt in chunk.receipts] for chunk in viewer.chunks] == [
        [],
        [],
        [2],
        [],
    ]
    assert same(viewer.chunks, alone(engine, controls=[(control, 2)]))


def test_a_pause_in_flight_is_told_after_the_chunk_it_does_not_touch(engine: Engine, mesh: FakeMesh) -> None:
    gate = mesh.hold("a1")
    with serving(engine) as service:
        viewer = join(service, engine, mesh)
        assert gate.reached.wait(PATIENCE_S)
        service.control("a", Pause())
        gate.open.set()
        (applied,) = viewer.wait_for(Applied)
        assert [chunk.index for chunk in viewer.chunks] == [0, 1]
        assert [receipt.chunk_index for receipt in applied.receipts] == [2]
        service.control("a", Resume())
        viewer.ended()
    assert same(viewer.chunks, alone(engine))


@pytest.mark.parametrize(("stopping", "cause"), [("end", "closed"), ("stop", "stopped"), ("close", "closed")])
def test_a_session_that_is_to_end_in_flight_shows_what_was_under_way(
    engine: Engine, mesh: FakeMesh, stopping: str, cause: str
) -> None:
    gate = mesh.hold("a1")
    with serving(engine) as service:
        viewer = join(service, engine, mesh)
        assert gate.reached.wait(PATIENCE_S)
        if stopping == "end":
            service.end("a")
        elif stopping == "stop":
            service.control("a", Stop())
        else:
            closer = threading.Thread(target=service.close)
            closer.start()
            while not service._shared.is_over:
                closer.join(0.001)
        gate.open.set()
        assert viewer.ended().cause == cause
    assert mesh.events[-2:] == ["have a1", "show a1"]
    assert not mesh.flying, "a receive is never skipped"
    assert same(viewer.chunks, alone(engine, 2))


def test_an_idle_session_is_moved_away_only_when_its_last_pictures_are_made(
    engine: Engine, mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = mesh.hold("a1")
    offload = engine.offload
    moved = threading.Event()

    def noted(session: Session) -> None:
        mesh.events.append("offload")
        offload(session)
        moved.set()

    monkeypatch.setattr(engine, "offload", noted)
    with serving(engine) as service:
        viewer = join(
            service, engine, mesh, unattended="pause", idle_s=1e-6, fps=20.0
        )  # slow enough to be let in again
        service.watch("a")
        assert gate.reached.wait(PATIENCE_S)
        service.unwatch("a")
        gate.open.set()
        viewer.wait_for(Chunk, lambda found: len(found) == 2)
        assert moved.wait(PATIENCE_S)
        service.watch("a")
        viewer.ended()
    assert mesh.order("have a1", "show a1", "offload", "send a2")
    assert same(viewer.chunks, alone(engine))


def test_an_input_that_ends_is_shown_to_its_end(engine: Engine, mesh: FakeMesh) -> None:
    feed = LiveFeed((16, 32))
    for number in range(9 + 12 + 5):
        feed.push(np.full((16, 32, 3), number, np.uint8))
    feed.finish()
    with serving(engine) as service:
        viewer = join(service, engine, mesh, feed=feed, max_chunks=None)
        assert viewer.ended().cause == "input over"
    assert mesh.order("have a0", "send a1", "show a0", "have a1", "send a2", "show a1", "have a2", "show a2")
    assert [len(chunk.frames) for chunk in viewer.chunks] == [9, 12, 5]


def test_what_others_do_with_a_session_they_do_when_nothing_of_it_is_under_way(
    engine: Engine, mesh: FakeMesh
) -> None:
    gate = mesh.hold("a1")
    with serving(engine) as service:
        viewer = join(service, engine, mesh)
        assert gate.reached.wait(PATIENCE_S)
        job = service.on_engine("a", lambda session: (session.state().timeline.chunk_index, mesh.events[-1]))
        gate.open.set()
        assert job.result(PATIENCE_S) == (2, "show a1")
        viewer.ended()


def test_a_journal_tells_the_same_story(engine: Engine, mesh: FakeMesh, tmp_path: Path) -> None:
    header = engine.journal_header(engine.stream_config(**SMALL), "a")
    gate = mesh.hold("a1")
    with serving(engine) as service, closing(JournalWriter(tmp_path / "a.jsonl", header)) as journal:
        viewer = join(service, engine, mesh, journal=journal)
        assert gate.reached.wait(PATIENCE_S)
        service.control("a", Cut(id="now"))
        gate.open.set()
        viewer.ended()
    written = read_journal(tmp_path / "a.jsonl").chunks
    assert [each.digest for each in written] == [
        chunk.digest for chunk in alone(engine, controls=[(Cut(), 2)])
    ]
    assert [each.envelope.cache_epoch for each in written] == [0, 0, 1, 1]
    assert [receipt.control_id for receipt in written[2].receipts] == ["now"]


def test_a_viewer_who_waits_for_pictures_is_told_how_long_though_the_latents_were_in_time(
    engine: Engine, mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Session.finish

    def slow(session: Session, arrived: Any, **options: Any) -> Chunk:
        if arrived.envelope.chunk_index == 2:
            time.sleep(0.6)
        return finish(session, arrived, **options)

    monkeypatch.setattr(Session, "finish", slow)
    with serving(engine) as service:
        viewer = join(service, engine, mesh, fps=40.0, max_chunks=3)
        viewer.ended()
    third = viewer.notices[-2]
    assert isinstance(third, Chunk)
    assert 0.05 < third.late_s < PATIENCE_S, "two chunks play 0.525 s, the third's pictures take longer"


def test_a_turn_in_which_the_mesh_was_mended_teaches_nobody_how_long_a_chunk_takes(
    engine: Engine, mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    repairs = list[str]()
    learnt = list[float]()
    turns = list[float]()

    def mended(name: str, delivery: Delivery) -> Delivery:
        if name == "a2":
            repairs.append(name)
        return delivery

    mesh.answer = mended
    monkeypatch.setattr(Engine, "one_offs", property(lambda _: len(repairs)))
    with serving(engine) as service:
        places = service.table
        arrived = places.scheduler.arrived

        def noted(name: str, now: float, *, seconds: float, **more: Any) -> None:
            turns.append(seconds)
            arrived(name, now, seconds=seconds, **more)

        monkeypatch.setattr(places.admission.times, "add", lambda geometry, seconds: learnt.append(seconds))
        monkeypatch.setattr(places.scheduler, "arrived", noted)
        join(service, engine, mesh).ended()
    assert [seconds > 0 for seconds in turns] == [True, True, False, True], (
        "whose turn it was does not pay for it"
    )
    assert len(learnt) == 2, "the first chunk of a session is not learnt from either"


def test_a_chunk_that_begins_from_a_picture_is_not_learnt_from(
    engine: Engine, mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes an encode and a rebuilt window more than those that people are promised."""
    learnt = list[float]()
    picture = Picture.of(bytes(16 * 32 * 3), height=16, width=32)
    gate = mesh.hold("a0")
    with serving(engine) as service:
        times = service.table.admission.times
        monkeypatch.setattr(times, "add", lambda geometry, seconds: learnt.append(seconds))
        viewer = join(service, engine, mesh, max_chunks=6)
        assert gate.reached.wait(PATIENCE_S)
        service.control("a", SetImage(picture=picture, id="x"), at_chunk=2)
        service.control("a", SetImage(picture=picture, mode="blend", chunks=2), at_chunk=4)
        gate.open.set()
        viewer.ended()
    assert [chunk.epoch for chunk in viewer.chunks] == [0, 0, 1, 1, 1, 1]
    assert [len(chunk.frames) for chunk in viewer.chunks] == [9, 12, 13, 12, 12, 12]
    assert len(learnt) == 2, "those of chunks 1 and 3"
