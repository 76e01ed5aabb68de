"""The contract between front and mesh, where processes die or hang: crash, never hang; what a person was told
stays true.

Ids as in the contract's table. `python -m tests.soak.kills` does the same many times over.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from millstream.core.controls import SetPrompt
from millstream.core.errors import EnvelopeRefused
from millstream.core.topology import Topology
from millstream.engine.depths import ONE_AT_A_TIME
from millstream.engine.engine import Engine
from millstream.session.journal import Journal, JournalWriter, read_journal
from millstream.session.session import Session
from millstream.wire.framing import Frame
from millstream.wire.parcel import Parcel
from millstream.wire.process import Wire
from tests.dist import broken
from tests.dist.fronts import front
from tests.dist.meshes import LIMITS, MODEL, SMALL, alive, mesh_engine, mesh_of, pids_of, seconds_until_gone
from tests.unit.models_for_tests import relative_error
from tests.unit.one_chunk import accept, plan_chunk

WORKER = 2
ROOMY = SMALL | {"window": 24}
"""A window that holds all of the epoch."""


def kill(engine: Engine, rank: int) -> None:
    rank_processes = mesh_of(engine).rank_processes
    assert rank_processes is not None
    os.kill(rank_processes.pids[rank], signal.SIGKILL)


def newest(session: Session) -> Tensor:
    return session._history._latents[max(session._history._latents)]


def latents_of(session: Session, chunks: int) -> list[Tensor]:
    return [newest(session) for _ in session.stream(chunks)]


def planned(session: Session) -> Parcel:
    parcel = plan_chunk(session)
    assert parcel is not None
    return parcel


def disturbed(engine: Engine, session: Session) -> Tensor:
    """The next chunk, a worker killed while it is made."""
    flight = engine.transport.post([planned(session)])
    kill(engine, WORKER)
    assert accept(session, flight.result()[0]) is not None
    return newest(session)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_om_13_when_the_front_is_killed_stands_still_or_is_told_to_stop_all_ranks_go(
    sent: signal.Signals,
) -> None:
    with front("front+tp2", LIMITS) as running:
        os.kill(running.process.pid or 0, sent)
        seconds_until_gone(running.ranks, LIMITS.window_s + 2)
        if sent == signal.SIGTERM:
            running.process.join(5)
            assert running.process.exitcode == 0


def test_om_14_a_killed_worker_costs_a_stall_and_no_frame(tmp_path: Path) -> None:
    with mesh_engine() as engine:
        undisturbed = latents_of(engine.session("sea", seed=1, **ROOMY), 6)
        header = engine.journal_header(engine.stream_config(**ROOMY, seed=1), "s")
        with JournalWriter(tmp_path / "run.jsonl", header) as journal:
            session = engine.session("sea", seed=1, **ROOMY, session_id="s", journal=journal)
            resting = engine.session("hills", seed=2, **ROOMY)
            before = latents_of(resting, 2)
            found = [*latents_of(session, 3), disturbed(engine, session), *latents_of(session, 2)]
            rested = latents_of(resting, 2)
        for one, other in zip(found, undisturbed, strict=True):
            assert relative_error(one, other) < 1e-3
        alone = latents_of(engine.session("hills", seed=2, **ROOMY), 4)
        assert max(map(relative_error, [*before, *rested], alone)) < 1e-3
        assert engine.transport.recoveries == 1
    written = read_journal(tmp_path / "run.jsonl")
    assert [line.envelope.chunk_index for line in written.chunks] == [0, 1, 2, 3, 4, 5]
    assert [line.envelope.init_cache for line in written.chunks] == [True, False, False, True, False, False]
    assert written.chunks[3].envelope.context_indices == tuple(range(9)), "the journal shows it"


def test_om_14_past_the_window_a_recovery_is_a_recompute_at_that_chunk_and_replays_to_the_same_bits(
    tmp_path: Path,
) -> None:
    with mesh_engine() as engine:
        header = engine.journal_header(engine.stream_config(**SMALL, seed=1), "s")
        with JournalWriter(tmp_path / "run.jsonl", header) as journal:
            session = engine.session("sea", seed=1, **SMALL, session_id="s", journal=journal)
            session.control(SetPrompt(prompt="hills", mode="blend", chunks=3), at_chunk=3)
            found = [*latents_of(session, 4), disturbed(engine, session), *latents_of(session, 3)]
            session.close()
        written = read_journal(tmp_path / "run.jsonl")
        assert written.chunks[4].envelope.context_indices == (9, 10, 11)
        again = followed(engine, written)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    local = followed(Engine("wan-tiny", **MODEL), written)
    assert max(map(relative_error, found, local)) < 1e-5


def followed(engine: Engine, journal: Journal) -> list[Tensor]:
    """The latents of a journal's chunks, made again."""
    session = engine.session("sea", config=journal.header.config)
    return [newest(session) for _ in engine.stream(session, depths=ONE_AT_A_TIME).replay(journal.chunks)]


@pytest.mark.parametrize("topology", ["local", "front+1", "front+tp2", "front+sp2", "front+pp2"])
def test_r_02_a_journal_replays_to_the_same_bits_on_its_topology_and_within_tolerance_on_others(
    topology: str, tmp_path_factory: pytest.TempPathFactory, made_on_tp2: tuple[Journal, list[Tensor]]
) -> None:
    journal, latents = made_on_tp2
    if topology == "local":
        found = followed(Engine("wan-tiny", **MODEL), journal)
    else:
        with mesh_engine(topology) as engine:
            found = followed(engine, journal)
    if topology == "front+tp2":
        assert all(torch.equal(one, other) for one, other in zip(found, latents, strict=True))
    assert max(map(relative_error, found, latents)) < 1e-4


@pytest.fixture(scope="module")
def made_on_tp2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Journal, list[Tensor]]:
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    with mesh_engine() as engine:
        header = engine.journal_header(engine.stream_config(**SMALL, seed=1), "s")
        with JournalWriter(path, header) as writer:
            session = engine.session("sea", seed=1, **SMALL, session_id="s", journal=writer)
            session.control(SetPrompt(prompt="hills", mode="recompute"), at_chunk=3)
            session.control(SetPrompt(prompt="rain", mode="cut"), at_chunk=5)
            latents = latents_of(session, 7)
    return read_journal(path), latents


@pytest.mark.parametrize("rank", [1, WORKER])
def test_a_mesh_that_is_killed_while_nobody_streams_is_back_when_somebody_does(rank: int) -> None:
    with mesh_engine() as engine, engine.session("sea", seed=1, **ROOMY) as session:
        latents_of(session, 2)
        kill(engine, rank)
        seconds_until_gone(sorted(pids_of(engine)), 5)
        assert [chunk.index for chunk in session.stream(2)] == [2, 3]


def test_two_chunks_under_way_are_both_recovered() -> None:
    with mesh_engine() as engine, engine.session("sea", seed=1, **ROOMY) as session:
        expected = latents_of(engine.session("sea", seed=1, **ROOMY), 4)
        latents_of(session, 1)
        flights = [engine.transport.post([planned(session)]) for _ in range(3)]
        kill(engine, 1)
        found = []
        for flight in flights:
            assert accept(session, flight.result()[0]) is not None
            found.append(newest(session))
        assert max(map(relative_error, found, expected[1:])) < 1e-3


def test_a_chunk_that_brings_the_mesh_down_twice_ends_its_session_and_no_other() -> None:
    with mesh_engine(run=broken.falls_over) as engine:
        calm = engine.session("sea", **SMALL)
        poison = engine.session("sea", **SMALL, session_id="poison")
        next(calm.stream(1))
        with pytest.raises(
            EnvelopeRefused, match=r"chunk 0 of poison brought the mesh down twice: rank \d: .*poison"
        ):
            next(poison.stream(1))
        assert [chunk.index for chunk in calm.stream(2)] == [1, 2]


def test_before_a_mesh_that_hangs_is_killed_every_rank_says_what_it_is_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    limits = replace(LIMITS, hang_s=2.0)
    with (
        mesh_engine(run=broken.hangs, limits=limits) as engine,
        engine.session("sea", **SMALL, session_id="stuck") as session,
    ):
        next(session.stream(1))
        begun = time.monotonic()
        with pytest.raises(EnvelopeRefused, match="has not answered for 2 s"):
            next(session.stream(1))
        assert time.monotonic() - begun < 2 * (2.0 + 4.0), "twice, since it hangs again"
    report = sorted(Path("out/hangs").iterdir())[0].read_text()
    assert "rank 1: INFER call" in report
    assert "session stuck chunk 1" in report
    assert "collect (digests of inputs) on mesh (1, 2), shape (3,): waiting for" in report
    assert "time.sleep(3600)" in report, "the stack of the one that hangs"


@pytest.mark.parametrize("part", ["header", "meta"])
def test_a_message_that_was_damaged_on_its_way_ends_the_mesh_and_not_the_stream(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Wire.send
    damaged = []

    def damage_once(self: Wire, frame: Frame) -> None:
        if not damaged and frame.tensors:
            damaged.append(part)
            raw = bytearray(getattr(frame, part))
            raw[9] ^= 4
            frame = frame._replace(**{part: bytes(raw)})
        send(self, frame)

    with mesh_engine() as engine, engine.session("sea", seed=1, **ROOMY) as session:
        latents_of(session, 2)
        monkeypatch.setattr(Wire, "send", damage_once)
        assert [chunk.index for chunk in session.stream(2)] == [2, 3]
        assert damaged == [part]
        assert engine.transport.recoveries == 1


def test_a_rank_that_stands_still_is_noticed_within_the_window() -> None:
    with mesh_engine() as engine, engine.session("sea", seed=1, **ROOMY) as session:
        latents_of(session, 2)
        rank_processes = mesh_of(engine).rank_processes
        assert rank_processes is not None
        os.kill(rank_processes.pids[WORKER], signal.SIGSTOP)
        begun = time.monotonic()
        assert [chunk.index for chunk in session.stream(2)] == [2, 3]
        assert time.monotonic() - begun < LIMITS.window_s + 4


def test_a_closed_engine_leaves_nobody_behind_and_is_quick_about_it() -> None:
    with mesh_engine("front+pp2xtp2") as engine:
        assert engine.topology == Topology.parse("front+pp2xtp2")
        pids = sorted(pids_of(engine))
        assert len(alive(pids)) == 4
        begun = time.monotonic()
        engine.close()
        assert time.monotonic() - begun < LIMITS.stop_s
        assert alive(pids) == []


def test_sessions_that_go_through_a_pipeline_together_are_each_what_they_are_alone() -> None:
    with mesh_engine("front+pp2") as engine:
        alone = [
            [chunk.digest for chunk in engine.session(text, seed=1, **SMALL).stream(3)]
            for text in ("sea", "hills")
        ]
        sessions = [engine.session(text, seed=1, **SMALL) for text in ("sea", "hills")]
        together: list[list[str]] = [[], []]
        for _ in range(3):
            deliveries = engine.transport.post([planned(session) for session in sessions]).result()
            for session, delivery, digests in zip(sessions, deliveries, together, strict=True):
                chunk = accept(session, delivery)
                assert chunk is not None
                digests.append(chunk.digest)
    assert together == alone
