"""A chunk that takes too long is cut between two model calls: its session ends with the reason, everybody
else goes on."""

from __future__ import annotations

import time

import pytest

from millstream.core.config import StreamConfig
from millstream.core.errors import ChunkCut
from millstream.engine.engine import Engine
from millstream.generation.brake import Brake
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Ended
from millstream.serving.service import Service
from millstream.serving.session_entry import geometry
from tests.server.serving import SteadyTimes
from tests.unit.serving.test_service import BYTES, Owner, config, request, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("wan-tiny", weights="random", device="cpu", dtype="float32")


def slow_calls(engine: Engine, monkeypatch: pytest.MonkeyPatch, tokens: int, seconds: float) -> None:
    """Model calls of so many tokens or more take so long."""
    forward = engine.generator.dit.forward

    def slowly(x: object, *arguments: object, **options: object) -> object:
        if x.shape[-1] * x.shape[-2] >= tokens:  # type: ignore[attr-defined]
            time.sleep(seconds)
        return forward(x, *arguments, **options)

    monkeypatch.setattr(engine.generator.dit, "forward", slowly)


def test_a_brake_cuts_what_takes_longer_than_it_may_and_everything_once_it_is_pulled() -> None:
    brake = Brake()
    brake.begin()
    brake.check()
    brake.limit_s = 0.0
    with pytest.raises(ChunkCut, match="choose a smaller size or fewer steps"):
        brake.check()
    brake.release()
    brake.check()
    brake.pull()
    with pytest.raises(ChunkCut, match="shutting down"):
        brake.check()


def test_a_chunk_that_takes_too_long_ends_its_session_and_nobody_elses(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(engine) as service:
        times = service.table.admission.times = SteadyTimes()
        times.add(geometry(engine.spec, config(engine)), 0.001)
        good = Owner()
        huge = Owner()
        service.open(request(engine, "good"), good)
        service.watch("good")
        good.digests(1)
        slow_calls(engine, monkeypatch, tokens=16 * 16, seconds=2.0)
        engine.brake.limit_s = 1.9
        service.open(request(engine, "huge", height=256, width=256, fps=1.0), huge)
        service.watch("huge")
        ended = huge.wait_for(Ended)[-1]
        assert (ended.cause, "its chunk was cut off after" in ended.reason) == ("failed", True)
        assert good.digests(2)
        assert "huge" not in engine.generator.caches


def test_a_stop_cuts_a_long_chunk_and_everybody_is_told(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.serving.service.GRACE_S", 0.1)
    slow: StreamConfig = config(engine, height=256, width=256)
    service = Service(
        engine, admission=AdmissionConfig(memory_bytes=10 * BYTES), session_bytes=lambda config: BYTES
    )
    service.start(warm_up=[config(engine)])
    owner = Owner()
    assert service.ready.wait(20)
    slow_calls(engine, monkeypatch, tokens=16 * 16, seconds=2.0)
    service.open(request(engine, "a", height=slow.height, width=slow.width), owner)
    service.watch("a")
    time.sleep(0.3)
    begun = time.monotonic()
    assert service.close(20.0)
    assert time.monotonic() - begun < 10.0, "it is cut after one call"
    assert owner.wait_for(Ended)[-1] == Ended(cause="closed", reason="the server is shutting down")
    assert engine.generator.caches == {}


def test_what_would_take_too_long_is_refused_before_it_starts(engine: Engine) -> None:
    with running(engine) as service:
        service.table.admission.longest_chunk_s = 1e-6
        with pytest.raises(Exception, match="is the longest here: choose a smaller size or fewer steps"):
            service.open(request(engine, "a", height=512, width=512), Owner())
