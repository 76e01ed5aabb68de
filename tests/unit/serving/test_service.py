"""Many sessions on one engine: each is what it would be alone, and one that fails, leaves or waits harms
nobody."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from millstream.core.config import StreamConfig
from millstream.core.controls import Cut, Pause, Resume, SetPrompt, SetSeed, SetSteps, Stop, WeightedPrompt
from millstream.core.errors import MillstreamError, Overloaded, UnknownSession
from millstream.engine.engine import Engine
from millstream.serving.admission_types import AdmissionConfig, Admitted, Queued
from millstream.serving.batching import BatchTimes
from millstream.serving.chunk_times import ChunkTimes
from millstream.serving.notices import Applied, Ended, Live, Notice, Waiting
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest, geometry
from millstream.serving.session_table import SessionTable
from millstream.session.chunk import Chunk, ChunkPlan, PendingChunk
from millstream.session.feed import CAPACITY, LiveFeed
from millstream.session.session import Session

pytestmark = pytest.mark.slow

BYTES = 1000
PATIENCE_S = 20.0


class Owner:
    """Collects what it is told."""

    def __init__(self) -> None:
        self.heard: queue.Queue[Notice] = queue.Queue()

    def __call__(self, notice: Notice) -> None:
        self.heard.put(notice)

    def wait_for(self, kind: type, enough: Callable[[list], bool] = bool) -> list:
        """Notices of a kind until there are enough."""
        found: list = []
        until = time.monotonic() + PATIENCE_S
        while not enough(found):
            notice = self.heard.get(timeout=max(0.01, until - time.monotonic()))
            if isinstance(notice, kind):
                found.append(notice)
        return found

    def digests(self, count: int) -> list[str]:
        return [each.digest for each in self.wait_for(Chunk, lambda found: len(found) >= count)]


@contextmanager
def running(
    engine: Engine, *, memory: int = 100 * BYTES, max_waiting: int = 4, share: float = 1.0, batch: int = 1
) -> Iterator[Service]:
    admission = AdmissionConfig(memory_bytes=memory, max_waiting=max_waiting, share=share)
    service = Service(engine, admission=admission, session_bytes=lambda config: BYTES, batch=batch)
    service.start(warm_up=[config(engine)])
    assert service.ready.wait(PATIENCE_S)
    try:
        yield service
    finally:
        service.close()
        assert engine.generator.caches == {}


def config(engine: Engine, **changes: object) -> StreamConfig:
    return engine.stream_config(**({"fps": 8.0} | changes))


def request(engine: Engine, name: str, prompt: str = "sea", **changes: object) -> OpenRequest:
    fields = {key: changes.pop(key) for key in list(changes) if key in OpenRequest.__dataclass_fields__}
    return OpenRequest(
        session_id=name, prompts=(WeightedPrompt(prompt),), config=config(engine, **changes), **fields
    )


def alone(engine: Engine, prompt: str, chunks: int, **changes: object) -> list[str]:
    with engine.session(prompt, config=config(engine, **changes)) as session:
        return [chunk.digest for chunk in session.stream(chunks=chunks)]


def test_a_job_that_nobody_waits_for_any_more_harms_nobody(engine: Engine) -> None:
    with running(engine) as service:
        owner = Owner()
        service.open(request(engine, "a"), owner)
        service.watch("a")
        jobs = [service.on_engine("a", lambda session: session.id) for _ in range(50)]
        given_up = [job for job in jobs if job.cancel()]
        assert all(job.result(PATIENCE_S) == "a" for job in jobs if job not in given_up)
        assert owner.digests(2)
        assert service.failure is None


def test_interleaved_sessions_are_each_what_they_are_alone(engine: Engine) -> None:
    expected = {seed: alone(engine, "sea", 4, seed=seed) for seed in range(3)}
    with running(engine) as service:
        owners = {seed: Owner() for seed in range(3)}
        for seed, owner in owners.items():
            service.open(
                request(engine, f"s{seed}", seed=seed, fps=1.0, lead_s=60.0), owner
            )  # all fit, on a busy machine too
            service.watch(f"s{seed}")
        for seed, owner in owners.items():
            assert owner.digests(4)[:4] == expected[seed]


def test_a_commit_is_made_when_its_pictures_are_out_and_paid_for_with_the_next_chunk(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_commit = engine.run_commit
    events = list[str]()
    slow_s = 0.2
    with running(engine) as service:

        def slowly(session_id: str) -> None:
            events.append("commit")
            assert engine.generator.caches[session_id].owed
            time.sleep(slow_s)
            run_commit(session_id)

        def tell(notice: Notice) -> None:
            events.extend(["pictures"] if isinstance(notice, Chunk) else [])
            owner(notice)

        monkeypatch.setattr(engine, "run_commit", slowly)
        owner = Owner()
        service.open(request(engine, "a"), tell)
        service.watch("a")
        shown = owner.wait_for(Chunk, lambda found: len(found) >= 4)
        assert events[:7] == ["pictures", "commit"] * 3 + ["pictures"]
        assert service.metrics().scheduler.busy_s > 3 * slow_s
        timings = [notice.timing for notice in shown]
        assert all(timing.total_ms > 1e3 * slow_s for timing in timings[1:])
        assert ["commit" in timing.phases_ms for timing in timings[:4]] == [False, True, True, True]
        assert all(sum(timing.phases_ms.values()) <= timing.total_ms for timing in timings)


def test_nobody_is_ahead_of_the_viewer_by_more_than_the_lead(engine: Engine) -> None:
    with running(engine) as service:
        owner = Owner()
        service.open(request(engine, "a", lead_s=3.0), owner)
        service.watch("a")
        owner.digests(2)
        time.sleep(0.5)
        assert all(session.ahead_s <= 3.0 for session in service.metrics().scheduler.sessions)


def test_a_session_waits_for_its_first_viewer_and_stands_still_without_one(engine: Engine) -> None:
    with running(engine) as service:
        owner = Owner()
        service.open(request(engine, "a"), owner)
        time.sleep(0.3)
        assert service.metrics().scheduler.sessions[0].chunks == 0
        service.watch("a")
        owner.digests(1)
        service.unwatch("a")
        service.on_engine("a", lambda session: None).result(PATIENCE_S)  # its turn is over
        before = service.metrics().scheduler.sessions[0].chunks
        time.sleep(0.5)
        assert service.metrics().scheduler.sessions[0].chunks == before


def test_a_control_gets_both_receipts(engine: Engine) -> None:
    with running(engine) as service:
        owner = Owner()
        service.open(request(engine, "a"), owner)
        service.watch("a")
        owner.digests(1)
        queued = service.control("a", SetPrompt(prompt="hills"))
        shown = owner.wait_for(Chunk, lambda found: found and found[-1].receipts)[-1]
        assert queued.state == "queued"
        assert shown.receipts[0].control_id == queued.control_id
        assert shown.receipts[0].chunk_index == queued.chunk_index
        assert shown.prompts[0].text == "hills"


def test_a_pause_is_told_and_a_resumed_session_goes_on_to_the_same_bits(engine: Engine) -> None:
    expected = alone(engine, "sea", 4)
    with running(engine) as service:
        owner = Owner()
        service.open(request(engine, "a"), owner)
        service.watch("a")
        found = owner.digests(1)
        service.control("a", Pause(id="p"))
        until: list[Notice] = []
        while not any(isinstance(notice, Applied) for notice in until):
            until.append(owner.heard.get(timeout=PATIENCE_S))
        found += [notice.digest for notice in until if isinstance(notice, Chunk)]
        service.control("a", Resume())
        found += owner.digests(4 - len(found)) if len(found) < 4 else []
        assert found[:4] == expected


def test_an_idle_session_gives_up_its_place_and_comes_back_to_the_same_bits(engine: Engine) -> None:
    expected = alone(engine, "sea", 3)
    with running(engine, memory=BYTES) as service:
        first = Owner()
        second = Owner()
        service.open(request(engine, "a", idle_s=0.05, lead_s=3.0), first)
        service.watch("a")
        found = first.digests(1)
        service.unwatch("a")
        assert isinstance(service.open(request(engine, "b"), second), (Queued, Admitted))
        second.wait_for(Live)
        service.end("b")
        second.wait_for(Ended)
        service.watch("a")
        rest = first.wait_for(Chunk, lambda each: len(found) + len(each) >= 3)
        assert (found + [notice.digest for notice in rest])[:3] == expected


def test_the_next_in_line_gets_the_place_of_one_that_ends(engine: Engine) -> None:
    with running(engine, memory=BYTES) as service:
        first = Owner()
        second = Owner()
        third = Owner()
        service.open(request(engine, "a"), first)
        assert isinstance(service.open(request(engine, "b"), second), Queued)
        assert isinstance(service.open(request(engine, "c"), third), Queued)
        assert third.wait_for(Waiting)[-1].position == 2
        service.watch("b")
        service.end("a")
        assert second.wait_for(Live)
        assert third.wait_for(Waiting)[-1].position == 1
        assert second.digests(1)


def test_one_too_many_is_refused_at_once_with_the_reason(engine: Engine) -> None:
    with running(engine, memory=BYTES, max_waiting=0) as service:
        service.open(request(engine, "a"), Owner())
        service.watch("a")
        begun = time.monotonic()
        with pytest.raises(Overloaded, match="is free"):
            service.open(request(engine, "b"), Owner())
        assert time.monotonic() - begun < 0.1


@pytest.mark.parametrize("batch", [1, 4])
def test_a_session_that_fails_ends_alone_and_gives_back_its_memory(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    run = engine.generator.begin

    def failing(parcels: list) -> list:
        if any(
            parcel.envelope.session_id == "bad" and parcel.envelope.chunk_index >= 1 for parcel in parcels
        ):
            raise RuntimeError("the device is on fire")
        return run(parcels)

    monkeypatch.setattr(engine.generator, "begin", failing)
    with running(engine, batch=batch) as service:
        bad = Owner()
        good = Owner()
        for name, owner in (("bad", bad), ("good", good)):
            service.open(request(engine, name), owner)
            service.watch(name)
        ended = bad.wait_for(Ended)[-1]
        assert ended.cause == "failed"
        assert ended.reason == "it failed (RuntimeError); the log has more"
        assert "bad" not in engine.generator.caches
        assert len(good.digests(3)) == 3
        with pytest.raises(UnknownSession):
            service.control("bad", Cut())


def test_a_session_whose_next_chunk_cannot_be_decided_ends_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Session.decide

    def failing(session: Session) -> ChunkPlan | None:
        if session.id == "bad" and session.timeline.chunk_index >= 1:
            raise ZeroDivisionError("float division by zero")
        return decide(session)

    monkeypatch.setattr(Session, "decide", failing)
    with running(engine) as service:
        bad = Owner()
        good = Owner()
        for name, owner in (("bad", bad), ("good", good)):
            service.open(request(engine, name), owner)
            service.watch(name)
        assert bad.wait_for(Ended)[-1].reason == "it failed (ZeroDivisionError); the log has more"
        assert len(good.digests(3)) == 3
        assert service.failure is None


def test_sessions_that_are_batched_are_told_the_same_stream(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        BatchTimes, "choose", lambda self, key, most, affordable: min(most, self.policy.max_size)
    )
    sizes = []
    run = engine.generator.begin
    monkeypatch.setattr(engine.generator, "begin", lambda parcels: sizes.append(len(parcels)) or run(parcels))
    shown = {}
    for batch in (1, 4):
        with running(engine, batch=batch, share=1.0) as service:
            service.table.admission.times = ChunkTimes()
            for _ in range(3):
                service.table.admission.times.add(
                    geometry(engine.spec, config(engine)), 1e-3
                )  # or it would admit one only
            owners = {seed: Owner() for seed in range(3)}
            for seed, owner in owners.items():
                service.open(
                    request(engine, f"s{seed}", seed=seed, fps=240.0), owner
                )  # more than it can: all are always ready
                service.watch(f"s{seed}")
            for seed, owner in owners.items():
                pictures = owner.wait_for(Chunk, lambda found: len(found) >= 4)
                shown.setdefault(seed, []).append(
                    np.concatenate([each.frames for each in pictures[:4]]).astype(int)
                )
    assert max(sizes) > 1
    for one, other in shown.values():
        assert np.abs(one - other).max() <= 1


def test_stop_ends_a_session_even_while_nobody_watches(engine: Engine) -> None:
    with running(engine) as service:
        owner = Owner()
        service.open(request(engine, "a"), owner)
        service.control("a", Stop())
        assert owner.wait_for(Ended)[-1].cause == "stopped"


def test_more_steps_than_the_promise_carries_are_refused(engine: Engine) -> None:
    with running(engine, share=0.5) as service:
        owner = Owner()
        load = service.table.admission.times.estimate(geometry(engine.spec, config(engine))).seconds
        fps = 0.4 * 12 / load
        service.open(request(engine, "a", fps=min(fps, 240.0), rate="strict"), owner)
        with pytest.raises(Overloaded, match=r"of the device|could wait"):
            service.control("a", SetSteps(steps=tuple(range(1000, 0, -10))))
        service.control("a", SetSteps(steps=(900.0, 400.0)))


def test_a_camera_session_waits_for_frames_and_ends_with_them(engine: Engine) -> None:
    feed = LiveFeed((32, 32))
    with running(engine) as service:
        owner = Owner()
        service.open(request(engine, "a", feed=feed), owner)
        service.watch("a")
        time.sleep(0.2)
        assert service.metrics().scheduler.sessions[0].chunks == 0
        for number in range(9 + 5):
            feed.push(np.full((32, 32, 3), 10 * number, np.uint8))
            service.fed("a")
        assert len(owner.wait_for(Chunk)[0].frames) == 9
        feed.finish()
        service.fed("a")
        assert len(owner.wait_for(Chunk)[0].frames) == 5
        assert owner.wait_for(Ended)[-1].cause == "input over"


def test_a_live_feed_keeps_the_newest_and_no_more() -> None:
    feed = LiveFeed((2, 2))
    for number in range(CAPACITY + 10):
        feed.push(np.full((2, 2, 3), number, np.uint8))
    frames, real = feed.read(12)
    assert (real, feed.dropped, int(frames[0, 0, 0, 0])) == (12, 10, 10)


def test_what_controls_have_made_of_a_session_is_known_to_those_who_come_later(engine: Engine) -> None:
    with running(engine) as service:
        assert service.timeline("a") is None
        owner = Owner()
        service.open(request(engine, "a"), owner)
        service.watch("a")
        owner.digests(1)
        before = service.timeline("a")
        assert before is not None
        assert service.metrics().paused == set()
        service.control("a", SetSeed(seed=before.seed + 1))
        owner.digests(3)
        service.control("a", Pause())
        owner.wait_for(Applied)
        after = service.timeline("a")
        assert after is not None
        assert (after.paused, after.seed) == (True, before.seed + 1)
        assert service.metrics().paused == {"a"}


def test_a_job_that_comes_too_late_is_answered(engine: Engine) -> None:
    with running(engine) as service:
        service.open(request(engine, "a"), Owner())
        begun = threading.Event()
        go_on = threading.Event()
        first = service.on_engine("a", lambda session: (begun.set(), go_on.wait(PATIENCE_S)))
        assert begun.wait(PATIENCE_S)
        closing = threading.Thread(target=service.close)
        late = service.on_engine("a", lambda session: None)
        with service._shared:
            closing.start()
            service._shared.is_over = True
        go_on.set()
        closing.join()
        first.result(PATIENCE_S)
        with pytest.raises(UnknownSession):
            late.result(PATIENCE_S)


def test_the_engine_need_not_wait_long_for_those_who_are_busy_in_python(engine: Engine) -> None:
    with running(engine):
        assert sys.getswitchinterval() <= 0.0002


def test_closing_the_service_ends_every_session_and_leaves_no_thread(engine: Engine) -> None:
    before = set(threading.enumerate())
    owner = Owner()
    with running(engine) as service:
        service.open(request(engine, "a"), owner)
        service.watch("a")
    assert owner.wait_for(Ended)[-1].cause == "closed"
    assert set(threading.enumerate()) <= before
    with pytest.raises(MillstreamError, match="shutting down"):
        service.open(request(engine, "b"), Owner())


@pytest.mark.parametrize("frames", [1, 8])
def test_a_first_chunk_of_its_own_steps_is_shown_and_nothing_is_learnt_from_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    """Beside one of another schedule, with which it may share no call."""
    own = dict(steps=(1000,), first_steps=(1000, 750, 500), frames_per_chunk=frames, window=2 * frames)
    calm = dict(fps=float(frames), lead_s=60.0)  # all fit, on a busy machine too
    expected = [alone(engine, "sea", 4, **each) for each in (own, {})]
    typical: dict[int, bool] = {}
    shown = SessionTable.shown

    def noted(table: SessionTable, pending: PendingChunk, chunk: Chunk) -> None:
        if pending.session.id == "own":
            typical[chunk.index] = pending.is_typical
        shown(table, pending, chunk)

    monkeypatch.setattr(SessionTable, "shown", noted)
    with running(engine, batch=2) as service:
        service.table.admission.times.add(geometry(engine.spec, config(engine, **own)), 0.01)
        owners = [Owner(), Owner()]
        service.open(request(engine, "own", **own, **calm), owners[0])
        service.open(request(engine, "plain", **calm), owners[1])
        service.control("own", Cut(), at_chunk=4)
        for name in ("own", "plain"):
            service.watch(name)
        for owner, digests in zip(owners, expected, strict=True):
            assert owner.digests(4)[:4] == digests
        asked = service.table.entries["own"].asked
        assert asked.first_geometry is not None
        assert (asked.geometry.calls, asked.first_geometry.calls) == (2, 4)
        assert service.table.entries["plain"].asked.first_geometry is None
        owners[0].digests(2)
        assert [typical[chunk] for chunk in range(6)] == [False, True, True, True, False, True]


def test_its_own_first_steps_are_promised_when_they_are_named(engine: Engine) -> None:
    with running(engine) as service:
        service.open(request(engine, "a"), Owner())
        service.control("a", SetSteps(steps=(1000,), first_steps=(1000, 750, 500, 250)))
        service.control("a", SetSteps(steps=(900,)))
        asked = service.table.entries["a"].asked
        assert asked.first_geometry is not None
        assert (asked.geometry.calls, asked.first_geometry.calls) == (2, 5)
