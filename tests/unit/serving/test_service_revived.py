"""Saved sessions that are served again: they take a place like any other, and a bad one ends alone."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from millstream.core.controls import Cut, SetSteps
from millstream.core.errors import ControlError, SnapshotError, UnknownSession
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.serving.chunk_times import ChunkTimes
from millstream.serving.notices import Ended, Live, Waiting
from millstream.serving.session_entry import OpenRequest, geometry
from millstream.session.session import Session
from tests.unit.serving.test_service import BYTES, PATIENCE_S, Owner, alone, config, request, running
from tests.unit.serving.test_service_places import wait_for_places, wait_until

pytestmark = pytest.mark.slow


def saved(engine: Engine, chunks: int = 2, **changes: object) -> snapshot.Snapshot:
    with engine.session("sea", config=config(engine)) as session:
        list(session.stream(chunks))
        for control in changes.pop("controls", ()):
            session.control(control, at_chunk=99)
        return snapshot.capture(engine, session, "")


def restoring(engine: Engine, name: str, make: Callable[[Engine], Session], **changes: object) -> OpenRequest:
    """Of what is read at once."""
    return request(engine, name, start=lambda: make, **changes)


def test_a_saved_session_is_read_when_it_has_its_place_goes_on_and_the_copy_is_let_go(
    engine: Engine, tmp_path: Path
) -> None:
    file = tmp_path / "saved.safetensors"
    snapshot.write(saved(engine), file)
    read: list[weakref.ref[torch.Tensor]] = []

    def start() -> Callable[[Engine], Session]:
        held = snapshot.read(file, engine, "")
        read.append(weakref.ref(next(iter(held.tensors.values()))))
        return lambda engine: snapshot.revive(held, engine, "a")

    with running(engine, memory=BYTES) as service:
        first = Owner()
        owner = Owner()
        service.open(request(engine, "first"), first)
        service.open(request(engine, "a", start=start), owner)
        service.watch("a")
        assert owner.wait_for(Waiting)[-1].position == 1
        assert read == [], "one that waits in line is a file and no memory"
        service.end("first")
        assert owner.digests(2) == alone(engine, "sea", 4)[2:]
        gc.collect()
        assert [each() for each in read] == [None]


def test_a_snapshot_that_cannot_be_read_or_revived_ends_alone_and_gives_up_its_place(engine: Engine) -> None:
    def gone() -> Callable[[Engine], Session]:
        raise SnapshotError("the file is not there any more")

    def too_large(engine: Engine) -> Session:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with running(engine, memory=BYTES) as service:
        for asked, said in (
            (request(engine, "a", start=gone), "not there"),
            (restoring(engine, "a", too_large), "memory"),
        ):
            owner = Owner()
            service.open(asked, owner)
            ended = owner.wait_for(Ended)[-1]
            assert (ended.cause, said in ended.reason) == ("failed", True)
            wait_for_places(service, 0)
        assert service.failure is None


def test_reviving_holds_up_nobody_who_asks(engine: Engine) -> None:
    """It happens on the engine's thread, without the lock; one who gives up meanwhile leaves nothing
    behind."""
    taken = saved(engine)
    begun = time.monotonic()

    def slowly(engine: Engine) -> Session:
        time.sleep(0.3)
        return snapshot.revive(taken, engine, "a")

    with running(engine) as service:
        owner = Owner()
        begun = time.monotonic()
        service.open(restoring(engine, "a", slowly), owner)
        with pytest.raises(ControlError, match="not live yet"):
            service.control("a", Cut())
        service.metrics()
        service.end("a")
        assert time.monotonic() - begun < 0.2
        owner.wait_for(Ended)
        wait_until(
            lambda: not service._shared.jobs and "a" not in engine.generator.caches, "nothing is left of it"
        )
        with pytest.raises(UnknownSession):
            service.on_engine("a", lambda session: None).result(PATIENCE_S)
        assert engine.generator.caches == {}


def test_a_control_that_waits_in_a_snapshot_must_fit_the_promise_too(engine: Engine) -> None:
    taken = saved(engine, controls=[SetSteps(steps=tuple(range(1000, 0, -10)))])
    with running(engine, share=0.5) as service:
        load = service.table.admission.times.estimate(geometry(engine.spec, config(engine))).seconds
        service.table.admission.times = ChunkTimes()
        for _ in range(3):
            service.table.admission.times.add(geometry(engine.spec, config(engine)), load)
        owner = Owner()
        fps = min(0.4 * 12 / load, 240.0)
        service.open(
            restoring(
                engine, "a", lambda engine: snapshot.revive(taken, engine, "a"), fps=fps, rate="strict"
            ),
            owner,
        )
        ended = owner.wait_for((Ended, Live))[-1]
        assert isinstance(ended, Ended)
        assert "of the device" in ended.reason or "could wait" in ended.reason
        assert engine.generator.caches == {}
