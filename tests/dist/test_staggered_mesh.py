"""A stream batch over a mesh: the chunks of a local one of the same depth, and stages that work at the same
time."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from torch import Tensor

from millstream.core.controls import AnyControl, Cut, SetPrompt, SetSteps
from millstream.engine.engine import Engine
from millstream.engine.staggered import MeshBatch, staggered_stream
from millstream.generation.generator import Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.mesh.config import MeshConfig
from millstream.mesh.rank import run_rank
from millstream.mesh.recovery import MeshTransport
from millstream.mesh.rendezvous import MeetingPoint
from millstream.parallel.mesh_dit import MeshDiT
from millstream.session.journal import JournalWriter, read_journal
from tests.dist.meshes import MODEL, mesh_engine
from tests.dist.streams import newest
from tests.dist.test_contract_deaths import kill
from tests.unit.commands.test_cli import millstream
from tests.unit.models_for_tests import relative_error
from tests.unit.one_chunk import plan_chunk, submit

STREAM = dict(height=16, width=32, window=9, steps=(1000, 750, 500, 250), seed=4)
STEERED: dict[int, AnyControl] = {
    2: SetPrompt(prompt="hills", mode="recompute"),
    5: Cut(),
    7: SetSteps(steps=(1000, 500)),
}
FRAMES = 9 + 12 * 8
"""Of nine chunks without a cut."""


def latents(
    engine: Engine, depth: int, controls: dict[int, AnyControl] | None = None, chunks: int = 9
) -> list[Tensor]:
    """The last frame of every chunk of a stream with so many chunks under way."""
    with engine.session("sea", **STREAM) as session:
        for chunk, control in (controls or {}).items():
            session.control(control, at_chunk=chunk)
        stream = staggered_stream(engine, session, depth=depth).stream(num_frames=9 + 12 * (chunks - 1))
        return [newest(session) for _ in stream]


@pytest.fixture(scope="module")
def local() -> Engine:
    return Engine("wan-tiny", **MODEL)


@pytest.mark.parametrize("topology", ["front+pp2", "front+tp2"])
def test_a_steered_stream_batch_on_a_mesh_makes_the_latents_of_a_local_one(
    topology: str, local: Engine
) -> None:
    with mesh_engine(topology) as engine:
        for depth in (2, 3):
            found = latents(engine, depth, STEERED)
            expected = latents(local, depth, STEERED)
            assert len(found) == len(expected) >= 9
            assert max(map(relative_error, found, expected)) < 1e-5
        assert max(map(relative_error, latents(engine, 1), latents(local, 1))) < 1e-5, (
            "one at a time is the exact stream"
        )


SLOW_S = 0.05


def run_slow_rank(config: MeshConfig, rank: int, meeting: MeetingPoint) -> None:
    run_rank(config, rank, meeting, make_generator=with_slow_blocks)


def with_slow_blocks(share: MeshDiT, stopwatch: Stopwatch) -> Generator:
    for block in share.dit.blocks:
        block.register_forward_hook(lambda *_: time.sleep(SLOW_S))
    return Generator(share, stopwatch)


def test_staggered_chunks_fill_the_stages_of_a_pipeline() -> None:
    """A chunk is four steps through both blocks and a commit through the first: 9 sleeps one after the other,
    5 for stages that never wait."""
    with mesh_engine("front+pp2", run=run_slow_rank) as engine:
        taken = {}
        for depth in (1, 3):
            begun = time.perf_counter()
            latents(engine, depth, chunks=6)
            taken[depth] = time.perf_counter() - begun
    assert taken[3] < 0.85 * taken[1], (
        f"three under way took {taken[3]:.2f} s, one at a time {taken[1]:.2f} s"
    )


def test_a_rank_that_dies_costs_a_stall_and_the_staggered_chunks_begin_again(
    tmp_path: Path, local: Engine
) -> None:
    """In a window that holds all of it: otherwise the chunk before the lost ones had lost frames to them."""
    with mesh_engine("front+pp2") as engine:
        config = engine.stream_config(**STREAM | {"window": 36})
        header = engine.journal_header(config, "s", stream_batch=2)
        with JournalWriter(tmp_path / "run.jsonl", header) as journal:
            session = engine.session("sea", config=config, session_id="s", journal=journal)
            found = []
            for chunk in staggered_stream(engine, session, depth=2).stream(num_frames=FRAMES):
                found.append(newest(session))
                if chunk.index == 3:
                    kill(engine, rank=2)
            session.close()
        assert engine.transport.recoveries == 1
    written = read_journal(tmp_path / "run.jsonl")
    assert [line.envelope.chunk_index for line in written.chunks] == list(range(9))
    (mended,) = (line.envelope.chunk_index for line in written.chunks[1:] if line.envelope.init_cache)
    assert mended in (4, 5, 6), "the first that was not answered yet: as many are under way"
    assert max(map(relative_error, found, replayed_latents(local, tmp_path / "run.jsonl"))) < 1e-4


def replayed_latents(engine: Engine, path: Path) -> list[Tensor]:
    journal = read_journal(path)
    session = engine.session("sea", config=journal.header.config, session_id="again")
    return [newest(session) for _ in staggered_stream(engine, session, depth=2).replay(journal.chunks)]


def test_a_staggered_chunk_that_is_refused_ends_its_session_after_those_before_it() -> None:
    with mesh_engine("front+pp2") as engine:
        transport = engine.transport
        assert isinstance(transport, MeshTransport)
        session = engine.session("sea", **STREAM)
        batch = MeshBatch(transport, session.id, depth=2)
        done = []
        for _ in range(2):
            done += batch.post([plan_chunk(session)]).result()
        bad = plan_chunk(session)
        skipped = msgspec.structs.replace(bad.envelope, start_frame=bad.envelope.start_frame + 3)
        done += batch.post([type(bad)(envelope=skipped, latents_in=bad.latents_in)]).result()
        done += batch.flush().result()
        assert [(delivery.result.chunk_index, delivery.result.ok) for delivery in done] == [
            (0, True),
            (1, True),
            (2, False),
        ]
        assert "starts at frame 9, its cache ends at 5" in done[2].result.error
        assert "finds no cache here" in submit(transport, plan_chunk(session)).result.error
        assert len(latents(engine, 2, chunks=2)) == 2, "another session is not touched"


def test_a_staggered_chunk_that_comes_twice_is_made_once() -> None:
    with mesh_engine("front+pp2") as engine:
        session = engine.session("sea", **STREAM)
        transport = engine.transport
        parcels = [plan_chunk(session) for _ in range(2)]
        staggered = [
            type(each)(
                envelope=msgspec.structs.replace(each.envelope, under_way=2),
                latents_in=each.latents_in,
                conditioning=each.conditioning,
            )
            for each in parcels
        ]
        flights = [
            transport.post([each]) for each in (staggered[0], staggered[0], staggered[1], staggered[1])
        ]
        flights.append(transport.flush(session.id))
        found = [delivery.result.chunk_index for flight in flights for delivery in flight.result()]
        assert found == [0, 1]


def test_the_command_line_staggers_over_a_pipeline_and_replays_to_the_same_bits(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    small = [
        "--model",
        "wan-tiny",
        "--weights",
        "random:3",
        "--size",
        "16x32",
        "--dtype",
        "float32",
        "--device",
        "cpu",
    ]
    asked = [
        "--experimental",
        "--window",
        9,
        "--steps",
        "1000,750,500,250",
        "--stream-batch",
        2,
        "--topology",
        "front+pp2",
        "--chunks",
        4,
    ]
    code, _, errors = millstream(
        "generate", *small, *asked, "--journal", journal, "--out", tmp_path / "clip.mp4"
    )
    assert code == 0, errors
    assert errors.count("approximate") == 1
    assert read_journal(journal).header.stream_batch == 2
    code, said, errors = millstream("replay", journal, "--check", "--topology", "front+pp2", "--quiet")
    assert (code, said.splitlines()[0]) == (0, "identical"), errors
