"""The one loop between plan and pictures: who drives it, what a chunk is said to take, and a device that
works ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millstream.commands.bench.sessions import Rounds
from millstream.core.controls import Cut, SetPrompt
from millstream.engine import host_clock, stream
from millstream.engine.depths import QUEUED
from millstream.engine.engine import Engine
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.serving import turn_runner as turn_runner
from millstream.serving.notices import Ended
from millstream.session.chunk import Chunk, PendingChunk
from millstream.wire.parcel import Parcel, PendingDeliveries
from tests.unit.models_for_tests import tiny_engine
from tests.unit.serving.test_service import Owner, request, running

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = dict(height=16, width=32, window=6, seed=1)


def test_what_is_served_is_what_is_benchmarked_generated_and_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By construction: every driver's chunks go through the same class."""
    drivers = list[str]()

    class Watched(ChunkPipeline):
        def send(self, chunks: Sequence[PendingChunk]) -> None:
            drivers.append(by)
            super().send(chunks)

    for module in (turn_runner, stream):
        monkeypatch.setattr(module, "ChunkPipeline", Watched)
    monkeypatch.setattr("millstream.commands.bench.sessions.ChunkPipeline", Watched)
    engine = tiny_engine()
    by = "generate and bench stream"
    session = engine.session("sea", **SMALL)
    list(engine.stream(session).stream(num_frames=1))
    by = "bench stream --sessions"
    rounds = Rounds(engine, [session], together=True)
    rounds.make()
    rounds.finish()
    session.close()
    by = "serve"
    with running(Engine("wan-tiny", weights="random", device="cpu", dtype="float32")) as made:
        owner = Owner()
        made.open(request(made.engine, "a", unattended="run", max_chunks=1, **SMALL), owner)
        owner.wait_for(Ended)
    assert set(drivers) == {"generate and bench stream", "bench stream --sessions", "serve"}


def landed(**fields: Any) -> PendingChunk:
    return PendingChunk(session=None, plan=None, **fields)  # type: ignore[arg-type]


def test_over_a_mesh_a_chunk_takes_as_long_as_the_longer_of_generator_and_pictures() -> None:
    assert landed(turn_s=0.8, front_s=0.2).chunk_s == 0.8
    assert landed(turn_s=0.3, front_s=0.5).chunk_s == 0.5, (
        "pictures are what holds it up, even if nobody waited for these"
    )
    assert landed(turn_s=0.8, front_s=0.2, batch_size=4).chunk_s == 0.2


def test_on_a_device_that_works_ahead_a_chunk_takes_what_its_phases_take() -> None:
    assert landed(turn_s=0.8, front_s=0.3, device_s=0.7, shares_device=True).chunk_s == 0.7
    assert landed(turn_s=0.8, front_s=0.3, batch_size=4, shares_device=True).chunk_s == 0.3, (
        "only the first has phases"
    )


def test_a_host_that_is_slower_than_its_device_counts() -> None:
    assert landed(turn_s=0.8, device_s=0.3, host_s=0.5, shares_device=True).chunk_s == 0.5


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, list[str]]:
    """An engine that is treated as a GPU is: its chunks are queued ahead. And what happens in which order."""
    engine = Engine("wan-tiny", weights="random", device="cpu", dtype="float32")
    events = list[str]()
    monkeypatch.setattr(Engine, "depths", property(lambda engine: QUEUED))
    transport = engine.transport
    post = transport.post

    def noted(parcels: Sequence[Parcel]) -> PendingDeliveries:
        events.extend(f"send {parcel.envelope.session_id}{parcel.envelope.chunk_index}" for parcel in parcels)
        return post(parcels)

    monkeypatch.setattr(transport, "post", noted)
    return engine, events


def test_a_server_queues_the_next_chunk_before_it_waits_for_the_last_ones_pictures(
    queued: tuple[Engine, list[str]],
) -> None:
    engine, events = queued
    with running(engine) as made:
        del events[:]
        owner = Told("a", events)
        made.open(request(engine, "a", unattended="run", max_chunks=4, lead_s=60.0, **SMALL), owner)
        owner.wait_for(Ended)
    assert events == ["send a0", "send a1", "show a0", "send a2", "show a1", "send a3", "show a2", "show a3"]


def test_waiting_for_the_device_is_not_the_hosts_time(
    queued: tuple[Engine, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = queued
    clock = FakeClock()
    post = engine.transport.post
    shown = list[PendingChunk]()
    monkeypatch.setattr(host_clock, "time", clock)

    def posted(parcels: Sequence[Parcel]) -> PendingDeliveries:
        clock.now += 0.25  # until all is queued
        made = post(parcels)
        result = made.result
        monkeypatch.setattr(type(made), "result", lambda made: (clock.pass_by(8.0), result())[1])
        return made

    with engine.session("sea", **SMALL) as session:
        keep = lambda pending, chunk: shown.append(pending)  # noqa: E731
        pipeline = ChunkPipeline(posted, QUEUED, engine.parts.stopwatch, shown=keep, failed=raise_failure)
        decision = session.decide()
        assert decision is not None
        pipeline.turn([PendingChunk(session, decision)])
        pipeline.show()
    (pending,) = shown
    assert (pending.host_s, pending.thread_s) == (0.25, 0.25)


class FakeClock:
    now = 0.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    thread_time = monotonic


class Told(Owner):
    def __init__(self, name: str, events: list[str]) -> None:
        super().__init__()
        self.digests_seen: list[str] = []
        self._name = name
        self._events = events

    def __call__(self, notice: Any) -> None:
        if isinstance(notice, Chunk):
            self._events.append(f"show {self._name}{notice.index}")
            self.digests_seen.append(notice.digest)
        super().__call__(notice)


def test_sessions_of_a_server_that_works_ahead_have_the_bits_they_have_alone(
    queued: tuple[Engine, list[str]],
) -> None:
    engine, events = queued
    controls = ((2, SetPrompt(prompt="hills", mode="recompute")), (4, Cut()))

    def alone(seed: int) -> list[str]:
        with engine.session("sea", config=engine.stream_config(**(SMALL | dict(seed=seed)))) as session:
            for at_chunk, control in controls:
                session.control(control, at_chunk=at_chunk)
            return [chunk.digest for chunk in session.stream(6)]

    expected = {name: alone(seed) for seed, name in enumerate("ab")}
    with running(engine) as made:
        owners = {name: Told(name, events) for name in expected}
        for seed, (name, owner) in enumerate(owners.items()):
            asked = request(
                engine, name, unattended="pause", max_chunks=6, lead_s=60.0, **(SMALL | dict(seed=seed))
            )
            made.open(asked, owner)
            for at_chunk, control in controls:
                made.control(name, control, at_chunk=at_chunk)
            made.watch(name)
        for owner in owners.values():
            owner.wait_for(Ended)
    assert {name: owner.digests_seen for name, owner in owners.items()} == expected


def test_pictures_that_fail_while_others_are_in_flight_are_reported_when_those_are_back() -> None:
    engine = tiny_engine()
    events = list[str]()
    bad, good = (engine.session("sea", **SMALL) for _ in range(2))

    def failed(pending: PendingChunk, error: Exception) -> None:
        events.append(f"failed {pending.envelope.chunk_index}: {error}")
        bad.close()

    def shown(pending: PendingChunk, chunk: Chunk) -> None:
        events.append("shown")

    made = ChunkPipeline(engine.transport.post, QUEUED, engine.parts.stopwatch, shown=shown, failed=failed)

    def broken(arrived: Any, **options: Any) -> Chunk:
        events.append(f"in flight: {made.num_sent}")
        raise RuntimeError("no pictures")

    bad.finish = broken  # type: ignore[method-assign]
    for session in (bad, good):
        decision = session.decide()
        assert decision is not None
        made.turn([PendingChunk(session, decision)])
    made.show()
    assert events == ["in flight: 1", "failed 0: no pictures", "shown"]
    good.close()


def test_a_group_that_fails_is_sent_one_by_one_to_learn_whose_fault_it_was() -> None:
    engine = tiny_engine()
    posts = list[int]()
    told = list[str]()
    good, bad = (engine.session("sea", **SMALL) for _ in range(2))

    def post(parcels: Sequence[Parcel]) -> PendingDeliveries:
        posts.append(len(parcels))
        if any(parcel.envelope.session_id == bad.id for parcel in parcels):
            raise RuntimeError("too large")
        return engine.transport.post(parcels)

    made = ChunkPipeline(
        post,
        engine.depths,
        engine.parts.stopwatch,
        shown=lambda pending, chunk: told.append(f"shown {'good' if pending.session is good else 'bad'}"),
        failed=lambda pending, error: told.append(f"failed {'good' if pending.session is good else 'bad'}"),
    )
    decisions = [session.decide() for session in (good, bad)]
    planned = zip((good, bad), decisions, strict=True)
    made.turn([PendingChunk(session, plan) for session, plan in planned if plan is not None])
    made.show()
    assert posts == [2, 1, 1]
    assert sorted(told) == ["failed bad", "shown good"]
    good.close()
    bad.close()
