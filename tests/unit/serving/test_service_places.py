"""Who holds a place on the device: sessions that idle, come back, are restored, change their terms or run out
of memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch

from millstream.core.config import StreamConfig
from millstream.core.controls import Pause, Resume, SetSteps, SetWindow
from millstream.core.errors import ConfigError, ControlError, Overloaded
from millstream.core.speed import Speed
from millstream.engine.engine import Engine
from millstream.models.fast.recorded import RecordedStack
from millstream.serving import service as serving_service
from millstream.serving.admission_types import AdmissionConfig, Admitted, Queued
from millstream.serving.chunk_time_probe import ChunkTimeProbe
from millstream.serving.chunk_times import ChunkTimes, Estimate, Geometry
from millstream.serving.notices import Applied, Ended, Live, Waiting
from millstream.serving.service import Service
from millstream.serving.session_entry import geometry
from millstream.session.chunk import Chunk
from millstream.session.journal import JournalWriter, read_journal
from millstream.session.session import Session
from tests.unit.models.test_fast_dit import ActiveRecording
from tests.unit.serving.test_service import BYTES, PATIENCE_S, Owner, alone, config, request, running

pytestmark = pytest.mark.slow


def wait_until(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up, f"waited in vain until {what}"
        time.sleep(0.005)


def wait_for_places(service: Service, places: int) -> None:
    wait_until(lambda: service.metrics().admission.admitted == places, f"{places} places are taken")


def paused_and_gone(
    service: Service, engine: Engine, name: str = "a", **changes: object
) -> tuple[Owner, list[str]]:
    """A session that was paused and left and now lies in host memory; what it has shown."""
    owner = Owner()
    service.open(request(engine, name, idle_s=0.05, **changes), owner)
    service.watch(name)
    found = owner.digests(1)
    service.control(name, Pause(id="p"))
    while not isinstance(notice := owner.heard.get(timeout=PATIENCE_S), Applied):
        found += [notice.digest] if isinstance(notice, Chunk) else []
    service.unwatch(name)
    wait_for_places(service, 0)
    return owner, found


def test_who_looks_at_a_paused_session_in_host_memory_takes_no_place_until_it_is_resumed(
    engine: Engine,
) -> None:
    expected = alone(engine, "sea", 4)
    with running(engine, memory=BYTES) as service:
        owner, found = paused_and_gone(service, engine)
        service.watch("a")
        assert service.metrics().admission.admitted == 0
        service.control("a", Resume())
        assert service.metrics().admission.admitted == 1
        rest = owner.wait_for(Chunk, lambda each: len(found) + len(each) >= 4)
        assert (found + [notice.digest for notice in rest])[:4] == expected


def test_a_session_that_ends_on_its_way_back_gives_up_its_place(engine: Engine) -> None:
    with running(engine, memory=BYTES) as service:
        owner, _ = paused_and_gone(service, engine)
        with service._shared:  # the engine cannot bring it back meanwhile
            service.watch("a")
            service.control("a", Resume())
            service.end("a")
        owner.wait_for(Ended)
        wait_for_places(service, 0)
        assert isinstance(service.open(request(engine, "b"), Owner()), Admitted)


def test_one_who_leaves_while_waiting_to_come_back_leaves_the_line(engine: Engine) -> None:
    with running(engine, memory=BYTES) as service:
        first = Owner()
        second = Owner()
        service.open(request(engine, "a", idle_s=0.05), first)
        wait_for_places(service, 0)
        service.open(request(engine, "b", unattended="run"), second)
        service.watch("a")
        assert first.wait_for(Waiting)[-1].position == 1
        service.unwatch("a")
        assert service.metrics().admission.waiting == 0
        service.watch("a")
        assert first.wait_for(Waiting)[-1].position == 1
        service.end("b")
        assert first.digests(1) == alone(engine, "sea", 1)


def test_one_who_comes_back_while_it_is_moved_away_keeps_the_place(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(engine, "sea", 3)
    move = engine.offload
    with running(engine, memory=BYTES) as service:
        owner = Owner()
        service.open(request(engine, "a", idle_s=0.05), owner)
        service.watch("a")
        found = owner.digests(1)
        moved = threading.Event()

        def slowly(session: Session) -> None:
            move(session)
            service.watch("a")
            moved.set()

        monkeypatch.setattr(engine, "offload", slowly)
        service.unwatch("a")
        assert moved.wait(PATIENCE_S)
        rest = owner.wait_for(Chunk, lambda each: len(found) + len(each) >= 3)
        assert (found + [notice.digest for notice in rest])[:3] == expected
        assert service.metrics().admission.admitted == 1


def test_steps_asked_of_a_session_in_host_memory_hold_when_it_is_back(engine: Engine) -> None:
    with running(engine, memory=BYTES) as service:
        owner, _ = paused_and_gone(service, engine)
        service.control("a", SetSteps(id="fewer", steps=(1000.0, 500.0)))
        service.watch("a")
        service.control("a", Resume())
        shown = owner.wait_for(Chunk, lambda each: each and each[-1].receipts)[-1]
        assert "fewer" in {receipt.control_id for receipt in shown.receipts}


def test_terms_add_up_over_several_controls(engine: Engine) -> None:
    """Eight steps, then a larger window: it is eight steps with that window that must fit."""
    with running(engine) as service:
        service.open(request(engine, "a"), Owner())
        service.control("a", SetSteps(steps=tuple(range(1000, 200, -100))))
        service.control("a", SetWindow(window=12))
        asked = service.table.entries["a"].asked.geometry
        assert (asked.calls, asked.window) == (9, 12)
        with pytest.raises(ConfigError):
            service.control("a", SetWindow(window=1))
        with pytest.raises(ControlError, match="past"):
            service.control("a", SetWindow(window=15), at_chunk=-1)
        assert service.table.entries["a"].asked.geometry == asked


def test_a_session_that_cannot_come_back_for_want_of_memory_ends_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(session: Session) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with running(engine) as service:
        owner, _ = paused_and_gone(service, engine)
        good = Owner()
        service.open(request(engine, "good"), good)
        service.watch("good")
        monkeypatch.setattr(engine, "bring_back", too_large)
        service.watch("a")
        service.control("a", Resume())
        ended = owner.wait_for(Ended)[-1]
        assert (ended.cause, "ran out of memory" in ended.reason) == ("failed", True)
        assert "a" not in engine.generator.caches
        assert len(good.digests(3)) == 3
        assert service.failure is None
        wait_for_places(service, 1)


def test_out_of_memory_in_one_sessions_chunk_ends_that_session(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = engine.generator.begin

    def failing(parcels: list) -> list:
        if parcels[0].envelope.session_id == "greedy" and parcels[0].envelope.chunk_index == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(parcels)

    monkeypatch.setattr(engine.generator, "begin", failing)
    with running(engine) as service:
        greedy = Owner()
        good = Owner()
        for name, owner in (("greedy", greedy), ("good", good)):
            service.open(request(engine, name), owner)
            service.watch(name)
        assert "choose a smaller size or window" in greedy.wait_for(Ended)[-1].reason
        assert set(engine.generator.caches) == {"good"}
        assert len(good.digests(4)) == 4
        wait_for_places(service, 1)


def test_out_of_memory_in_one_sessions_commit_ends_that_session(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_commit = engine.run_commit

    def failing(session_id: str) -> None:
        if session_id == "greedy" and engine.generator.caches["greedy"].ring.slots.newest > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run_commit(session_id)

    with running(engine) as service:
        monkeypatch.setattr(engine, "run_commit", failing)
        greedy = Owner()
        good = Owner()
        for name, owner in (("greedy", greedy), ("good", good)):
            service.open(request(engine, name), owner)
            service.watch(name)
        heard = greedy.wait_for(
            (Chunk, Ended), lambda found: isinstance(found[-1], Ended) if found else False
        )
        assert [type(notice) for notice in heard] == [Chunk, Chunk, Ended], "its pictures were out"
        assert "choose a smaller size or window" in heard[-1].reason
        assert len(good.digests(4)) == 4
        wait_for_places(service, 1)


@pytest.mark.parametrize(
    ("terms", "said"), [(dict(max_chunks=2), "2 chunks"), (dict(max_life_s=0.2), "0.2 s")]
)
def test_a_session_ends_at_its_own_limit_and_gives_up_its_place(
    engine: Engine, terms: dict[str, float], said: str
) -> None:
    with running(engine, memory=BYTES) as service:
        owner = Owner()
        service.open(request(engine, "a", **terms), owner)
        service.watch("a")
        ended = owner.wait_for(Ended)[-1]
        assert (ended.cause, said in ended.reason) == ("limit", True)
        wait_for_places(service, 0)


def test_of_those_in_line_the_heavier_goes_first_and_one_that_gives_way_waits(engine: Engine) -> None:
    with running(engine, memory=BYTES) as service:
        service.open(request(engine, "here"), Owner())
        modest = Owner()
        plain = Owner()
        service.open(request(engine, "modest", weight=0.5), modest)
        service.open(request(engine, "plain"), plain)
        assert modest.wait_for(Waiting, lambda found: len(found) == 2)[-1].position == 2
        service.end("here")
        assert plain.wait_for(Live)
        assert modest.wait_for(Waiting)[-1].position == 1


def test_journals_of_interleaved_sessions_hold_their_own_chunks_and_no_others(
    engine: Engine, tmp_path: Path
) -> None:
    expected = {name: alone(engine, name, 3, seed=seed) for seed, name in enumerate(("sea", "hills"))}
    with running(engine) as service, ExitStack() as journals:
        owners = {}
        for seed, name in enumerate(expected):
            header = engine.journal_header(config(engine, seed=seed), name)
            journal = journals.enter_context(closing(JournalWriter(tmp_path / f"{name}.jsonl", header)))
            owners[name] = Owner()
            service.open(request(engine, name, name, seed=seed, journal=journal, max_chunks=3), owners[name])
            service.watch(name)
        for owner in owners.values():
            owner.wait_for(Ended)
    for name, digests in expected.items():
        journal = read_journal(tmp_path / f"{name}.jsonl")
        assert [chunk.digest for chunk in journal.chunks] == digests
        assert {chunk.envelope.session_id for chunk in journal.chunks} == {name}


def test_it_is_ready_only_when_it_is_warm(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    go_on = threading.Event()
    monkeypatch.setattr(
        ChunkTimeProbe, "_measure", lambda probe, config: (begun.set(), go_on.wait(PATIENCE_S))
    )
    service = Service(
        engine, admission=AdmissionConfig(memory_bytes=BYTES), session_bytes=lambda config: BYTES
    )
    service.start(warm_up=[config(engine)])
    assert begun.wait(PATIENCE_S)
    assert not service.ready.is_set()
    go_on.set()
    assert service.ready.wait(PATIENCE_S)
    service.close()


def test_a_server_that_is_stopped_while_it_warms_up_has_not_failed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def measure(probe: ChunkTimeProbe, config: StreamConfig) -> None:
        begun.set()
        while True:
            engine.brake.check()
            time.sleep(0.01)

    monkeypatch.setattr(ChunkTimeProbe, "_measure", measure)
    monkeypatch.setattr(serving_service, "GRACE_S", 0.1)
    service = Service(
        engine, admission=AdmissionConfig(memory_bytes=BYTES), session_bytes=lambda config: BYTES
    )
    service.start(warm_up=[config(engine)])
    assert begun.wait(PATIENCE_S)
    assert service.close()
    assert service.failure is None


def test_what_was_refused_is_measured_again_unless_that_would_hold_up_the_device(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    with running(engine) as service:
        monkeypatch.setattr(ChunkTimeProbe, "_measure", lambda probe, config: tried.append(config.height))
        service.table.admission.times.add(
            geometry(engine.spec, config(engine)), 0.5
        )  # too slow for it, on any machine
        for side in (1536, 16):
            with pytest.raises(Overloaded):
                service.open(
                    request(engine, f"{side}", height=side, width=side, fps=240.0, rate="strict"), Owner()
                )
        wait_until(lambda: tried != [], "something is tried")
    assert tried == [16]


class ChangingTimes(ChunkTimes):
    """Whatever the machine takes."""

    seconds = 2.0

    def estimate(self, geometry: Geometry) -> Estimate:
        return Estimate(seconds=self.seconds, slowest_s=self.seconds)


def test_one_in_line_is_let_in_when_chunks_turn_out_quicker(engine: Engine) -> None:
    first = Owner()
    second = Owner()
    times = ChangingTimes()
    with running(engine) as service:
        service.table.admission.times = times
        service.open(request(engine, "a"), first)
        service.watch("a")
        assert isinstance(service.open(request(engine, "b", may_wait=True), second), Queued)
        times.seconds = 0.01
        second.wait_for(Live)


def test_what_is_recorded_is_recorded_before_it_is_ready_and_what_was_measured_is_a_replay() -> None:
    engine = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")
    tape = ActiveRecording()
    engine.speed = Speed(blocks=True, round_keys=True, graphs=True)
    engine.model.dit.blocks = RecordedStack(engine.model.dit.blocks, engine.speed, tape)
    engine.recorded_places = lambda config: (
        0
    )  # a tape needs the session that it recorded, a graph only where that lay
    service = Service(
        engine, admission=AdmissionConfig(memory_bytes=BYTES), session_bytes=lambda config: BYTES
    )
    measured = []
    add = service.table.admission.times.add
    service.table.admission.times.add = lambda *what, **how: (
        measured.append(tape.replayed),
        add(*what, **how),
    )
    service.start(warm_up=[config(engine)])
    assert service.ready.wait(PATIENCE_S)
    service.close()
    calls = len(config(engine).steps) + 1
    assert tape.recorded == 2 * config(engine).chunks_to_fill, (
        "steps and commits, at every level the window is filled to"
    )
    assert len(measured) == 2
    assert measured[1] - measured[0] == calls, "every call of a chunk that counts"
    assert not engine.generator.caches


def test_a_session_without_a_place_may_not_ask_for_what_never_fits(engine: Engine) -> None:
    with running(engine, share=0.5) as service:
        load = service.table.admission.times.estimate(geometry(engine.spec, config(engine))).seconds
        paused_and_gone(service, engine, fps=min(0.3 * 12 / load, 60.0), rate="strict")
        with pytest.raises(Overloaded, match=r"of the device|could wait"):
            service.control("a", SetSteps(steps=tuple(range(1000, 0, -1))))
