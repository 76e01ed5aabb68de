"""What goes wrong while a served mesh works ahead ends its session, after what it was owed. The mesh is a
fake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from millstream.core.controls import Cut
from millstream.core.errors import EnvelopeRefused
from millstream.engine.engine import Engine
from millstream.serving.batching import BatchTimes
from millstream.session.chunk import Chunk
from millstream.session.feed import LiveFeed
from millstream.session.session import Session
from millstream.wire.parcel import Delivery
from tests.unit.fake_mesh import FakeMesh
from tests.unit.serving.test_service import PATIENCE_S
from tests.unit.serving.test_service_overlap import alone, join, same, serving

pytestmark = pytest.mark.slow


def refuse_to_answer(mesh: FakeMesh, name: str) -> None:
    def answer(chunk: str, delivery: Delivery) -> Delivery:
        if chunk != name:
            return delivery
        return Delivery(result=msgspec.structs.replace(delivery.result, ok=False, error="it does not fit"))

    mesh.answer = answer


def refuse_to_take(mesh: FakeMesh, name: str) -> None:
    def refuse(names: Sequence[str]) -> None:
        if name in names:
            raise EnvelopeRefused("it does not fit")

    mesh.refuse = refuse


@pytest.mark.parametrize("refuse", [refuse_to_answer, refuse_to_take])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_chunk_that_fails_ends_its_session_after_the_one_before_and_no_other(
    engine: Engine,
    mesh: FakeMesh,
    monkeypatch: pytest.MonkeyPatch,
    refuse: Callable[[FakeMesh, str], None],
    batch: int,
) -> None:
    monkeypatch.setattr(
        BatchTimes, "choose", lambda self, key, most, affordable: min(most, self.policy.max_size)
    )
    refuse(mesh, "a3")  # windows are full, and calls shared, from the second chunk on
    gate = mesh.hold("a0")
    with serving(engine, batch=batch) as service:
        bad = join(service, engine, mesh)
        assert gate.reached.wait(PATIENCE_S)
        good = join(service, engine, mesh, "b", seed=2)
        gate.open.set()
        ended = bad.ended()
        assert (ended.cause, ended.reason) == ("failed", "it does not fit")
        good.ended()
    assert [chunk.index for chunk in bad.chunks] == [0, 1, 2]
    assert [chunk.index for chunk in good.chunks] == [0, 1, 2, 3]
    assert any("+" in event for event in mesh.events) == (batch > 1)
    expected = alone(engine, seed=2)
    if batch == 1:
        assert same(good.chunks, expected)
    for one, other in zip(good.chunks, expected, strict=True):
        assert np.abs(one.frames.astype(int) - other.frames).max() <= 1


@pytest.mark.parametrize("refuse", [refuse_to_answer, refuse_to_take])
def test_a_session_whose_chunk_fails_is_shown_the_one_before_and_then_ends(
    engine: Engine, mesh: FakeMesh, refuse: Callable[[FakeMesh, str], None]
) -> None:
    refuse(mesh, "a2")
    with serving(engine) as service:
        viewer = join(service, engine, mesh)
        assert viewer.ended().cause == "failed"
    assert mesh.order("have a1", "show a1")
    assert same(viewer.chunks, alone(engine, 2))


@pytest.mark.parametrize(
    "meanwhile", ["nothing", "a control comes", "it is left", "a frame too few", "another joins"]
)
def test_pictures_that_cannot_be_made_end_their_session_once_what_it_sent_is_back(
    engine: Engine, mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    finish = Session.finish
    gate = mesh.hold("a1")
    feed = LiveFeed((16, 32))

    def failing(session: Session, arrived: Any, **options: Any) -> Chunk:
        if (session.id, arrived.envelope.chunk_index) == ("a", 1):
            raise RuntimeError("the decoder is on fire")
        return finish(session, arrived, **options)

    for number in range(9 + 12 + 5):
        feed.push(np.full((16, 32, 3), number, np.uint8))
    monkeypatch.setattr(Session, "finish", failing)
    with serving(engine) as service:
        changes = dict(feed=feed) if meanwhile == "a frame too few" else {}
        viewer = join(service, engine, mesh, unattended="pause", idle_s=1e-6, **changes)
        service.watch("a")
        assert gate.reached.wait(PATIENCE_S)
        other = join(service, engine, mesh, "b") if meanwhile == "another joins" else None
        if meanwhile == "a control comes":
            service.control("a", Cut())
        elif meanwhile == "it is left":
            service.unwatch("a")
        gate.open.set()
        ended = viewer.ended()
        assert (ended.cause, ended.reason) == ("failed", "it failed (RuntimeError); the log has more")
        other = other or join(service, engine, mesh, "b", max_chunks=2)
        other.ended()
    assert [chunk.index for chunk in viewer.chunks] == [0]
    assert ("have a2" in mesh.events) == (meanwhile == "nothing")
    assert same(other.chunks, alone(engine, len(other.chunks)))
