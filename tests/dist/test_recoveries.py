"""Meshes that are lost again while they are brought back, at any point and any number of times: nobody waits
for ever, nothing that was told becomes untrue, and nothing is held open that a lost mesh had."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millstream.core.controls import Cut, WeightedPrompt
from millstream.core.errors import MeshGivenUp
from millstream.engine.engine import Engine
from millstream.mesh import recovery
from millstream.mesh.recovery import MeshTransport
from millstream.serving.admission import AdmissionConfig
from millstream.serving.notices import MESH_GIVEN_UP, Ended
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest, geometry
from millstream.session.chunk import Chunk
from tests.dist import broken
from tests.dist.meshes import LIMITS, SMALL, mesh_engine, mesh_of, seconds_until_gone
from tests.unit.serving.test_service import Owner

LEADER = 1
WORKER = 2
PATIENCE_S = 30.0


def kill(engine: Engine, *ranks: int, sent: signal.Signals = signal.SIGKILL) -> None:
    rank_processes = mesh_of(engine).rank_processes
    assert rank_processes is not None
    for rank in ranks:
        os.kill(rank_processes.pids[rank], sent)


def transport_of(engine: Engine) -> MeshTransport:
    assert engine.mesh is not None
    return engine.mesh


def until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s until {what}"
        time.sleep(0.01)


@contextmanager
def serving(engine: Engine) -> Iterator[Service]:
    service = Service(engine, admission=AdmissionConfig(memory_bytes=10), session_bytes=lambda config: 1)
    service.table.admission.times.add(
        geometry(engine.spec, engine.stream_config(**SMALL)), 1e-6
    )  # all may come in
    service.start()
    assert service.ready.wait(PATIENCE_S)
    try:
        yield service
    finally:
        service.close()


def join(service: Service, name: str, **terms: Any) -> Owner:
    """A session that goes on without being watched."""
    owner = Owner()
    config = service.engine.stream_config(**SMALL, fps=2.0)  # so slow that any machine can promise it
    terms = dict(unattended="run", lead_s=600.0) | terms
    service.open(
        OpenRequest(session_id=name, prompts=(WeightedPrompt("sea"),), config=config, **terms), owner
    )
    owner.wait_for(Chunk)
    return owner


@pytest.mark.parametrize(
    ("who", "point"),
    [
        (WORKER, "begins"),
        (WORKER, "stands still"),
        (WORKER, "reads weights"),
        (LEADER, "joins"),
        (WORKER, "makes groups"),
        (LEADER, "calls"),
        (LEADER, "checks"),
        (WORKER, "checks"),
    ],
)
def test_a_rank_that_is_killed_while_the_mesh_is_brought_back_costs_another_start(
    who: int, point: str, tmp_path: Path
) -> None:
    run = partial(broken.dies_while_starting, point=point, who=who, deaths=tmp_path)
    with mesh_engine(run=run) as engine, engine.session("sea", **SMALL) as session:
        next(session.stream(1))
        for death in ("first", "second"):
            (tmp_path / death).touch()
        kill(engine, WORKER)
        assert [chunk.index for chunk in session.stream(2)] == [1, 2]
        assert not list(tmp_path.iterdir()), "it was killed twice more"


def test_nothing_of_a_lost_mesh_is_held_open() -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    with mesh_engine() as engine, engine.session("sea", **SMALL) as session:
        next(session.stream(1))
        kill(engine, WORKER)
        next(session.stream(1))
        before = held()
        gc.disable()  # what a mesh holds is given back by its owner, not found by chance
        try:
            for rank in (LEADER, WORKER, LEADER, WORKER):
                kill(engine, rank)
                next(session.stream(1))
            assert held() == before
        finally:
            gc.enable()


def test_a_server_says_that_its_mesh_is_being_brought_back_until_it_is_even_if_nobody_streams(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    with (
        mesh_engine(run=partial(broken.waits_while_starting, gate=gate)) as engine,
        serving(engine) as service,
    ):
        owner = join(service, "a", max_chunks=2)
        owner.wait_for(Ended)
        assert service.trouble == ""
        fingerprint = engine.fingerprint()
        gate.touch()
        kill(engine, WORKER)
        until(lambda: service.trouble, "the loss is known")
        assert service.trouble == "the mesh is being brought back: rank 2 was killed by SIGKILL"
        assert engine.fingerprint() == fingerprint, "somebody may open a session meanwhile"
        gate.unlink()
        until(lambda: not service.trouble, "the mesh is back")
        assert transport_of(engine).recoveries == 1


def test_a_server_that_is_told_to_stop_does_not_wait_for_a_mesh_to_come_back(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with (
        mesh_engine(run=partial(broken.waits_while_starting, gate=gate)) as engine,
        serving(engine) as service,
    ):
        owner = join(service, "a")
        gate.touch()
        kill(engine, WORKER)
        until(lambda: service.trouble, "the loss is known")
        service.close(timeout_s=LIMITS.window_s + 2 * LIMITS.stop_s)
        assert service.failure is None
        assert owner.wait_for(Ended)[-1] == Ended(cause="closed", reason="the server is shutting down")


def test_a_mesh_that_dies_at_every_start_is_given_up_and_every_session_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PAUSES_S", (0.0,) * recovery.MAX_LOSSES)
    run = partial(broken.dies_while_starting, point="reads weights", who=WORKER, deaths=tmp_path)
    with mesh_engine(run=run) as engine, serving(engine) as service:
        owners = [join(service, name) for name in ("a", "b")]
        for death in range(100):
            (tmp_path / str(death)).touch()
        kill(engine, WORKER)
        for owner in owners:
            assert owner.wait_for(Ended)[-1] == MESH_GIVEN_UP
        until(lambda: not service.ready.is_set(), "the engine's thread has ended")
        assert isinstance(service.failure, MeshGivenUp)
        assert f"lost {recovery.MAX_LOSSES} times without a chunk in between" in str(service.failure)
        assert len(list(tmp_path.iterdir())) == 100 - (recovery.MAX_LOSSES - 1)


@pytest.mark.parametrize(
    ("ranks", "sent"),
    [
        ((LEADER,), signal.SIGKILL),
        ((LEADER, WORKER), signal.SIGKILL),
        ((LEADER,), signal.SIGSTOP),
        ((WORKER,), signal.SIGTERM),
    ],
)
def test_sessions_go_on_and_their_controls_are_applied_whoever_of_the_mesh_is_gone(
    ranks: tuple[int, ...], sent: signal.Signals
) -> None:
    with mesh_engine() as engine, serving(engine) as service:
        owners = {name: join(service, name) for name in ("a", "b", "c")}
        kill(engine, *ranks, sent=sent)
        for name in owners:
            assert service.control(name, Cut()).state == "queued"
        for owner in owners.values():
            owner.wait_for(Chunk, lambda found: any(each.receipts for each in found))
            owner.wait_for(Chunk)
        assert service.failure is None


def test_a_session_that_was_in_host_memory_when_the_mesh_was_lost_goes_on() -> None:
    with mesh_engine() as engine, engine.session("sea", **SMALL) as session:
        list(session.stream(2))
        engine.offload(session)
        kill(engine, WORKER)
        until(lambda: transport_of(engine).trouble, "the loss is known")
        transport_of(engine).mend()
        engine.bring_back(session)
        assert [chunk.index for chunk in session.stream(2)] == [2, 3]


def test_sessions_that_are_opened_while_the_mesh_is_brought_back_go_on_with_the_others(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    with (
        mesh_engine(run=partial(broken.waits_while_starting, gate=gate)) as engine,
        serving(engine) as service,
    ):
        first = join(service, "a")
        gate.touch()
        kill(engine, LEADER)
        until(lambda: service.trouble, "the loss is known")
        opening = threading.Thread(
            target=lambda: [join(service, f"late{number}", max_chunks=3) for number in range(3)]
        )
        opening.start()
        gate.unlink()
        opening.join(PATIENCE_S)
        assert not opening.is_alive()
        first.wait_for(Chunk, lambda found: len(found) > 2)


def test_a_rank_that_is_killed_while_the_server_warms_up_costs_a_stall() -> None:
    with mesh_engine() as engine:
        pids = sorted(mesh_of(engine).rank_processes.pids.values())  # type: ignore[union-attr]
        service = Service(engine, admission=AdmissionConfig(memory_bytes=10), session_bytes=lambda config: 1)
        service.start(warm_up=[engine.stream_config(**SMALL)])
        kill(engine, LEADER)
        seconds_until_gone(pids, PATIENCE_S)
        assert service.ready.wait(PATIENCE_S), "it is brought back, and warms up"
        service.close()
        assert service.failure is None
