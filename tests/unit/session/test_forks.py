"""A branch is its parent until it is steered otherwise, a session that goes back was never elsewhere, and
what that costs is bounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from millstream.core.controls import SetPrompt, Stop
from millstream.core.errors import ConfigError, ControlError, JournalError
from millstream.core.rewind import RewindConfig
from millstream.engine.depths import Depths
from millstream.engine.engine import Engine
from millstream.session.chunk import Chunk
from millstream.session.forks import as_parent, restart_at
from millstream.session.journal import JournalWriter, read_journal
from millstream.session.journal_path import read_path
from millstream.session.session import Session
from tests.soak.fork_trees import LIMITS, Tree
from tests.unit.models_for_tests import tiny_engine
from tests.unit.session.test_session import moving_square

pytestmark = pytest.mark.slow

SMALL = dict(height=16, width=32, window=6)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", rewind=LIMITS)


@pytest.fixture(scope="module")
def parent(engine: Engine) -> tuple[Session, list[Chunk]]:
    """Ten chunks long, with a prompt that changes on the way."""
    session = engine.session("sea", **SMALL)
    session.control(SetPrompt(prompt="storm", mode="blend", chunks=3), at_chunk=5)
    return session, list(session.stream(10))


def same(chunks: list[Chunk], expected: list[Chunk]) -> bool:
    pairs = list(zip(chunks, expected, strict=True))
    return all(
        a.digest == b.digest and a.index == b.index and np.array_equal(a.frames, b.frames) for a, b in pairs
    )


@pytest.mark.parametrize("at_chunk", [3, 6, 8], ids=["a state", "a state in a blend", "between states"])
def test_a_branch_of_an_earlier_chunk_gives_what_came_then_with_what_was_asked_for_later(
    parent: tuple[Session, list[Chunk]], at_chunk: int
) -> None:
    session, chunks = parent
    with session.fork(at_chunk) as branch:
        assert branch.timeline.chunk_index == at_chunk
        assert same(list(branch.stream(10 - at_chunk)), chunks[at_chunk:])


def test_what_is_kept_while_chunks_are_planned_ahead_is_as_exact(engine: Engine) -> None:
    """Chunk n is planned and sent before chunk n - 1 is back: the parts of a state are known at different
    times."""
    session = engine.session("sea", **SMALL)
    chunks = list(engine.stream(session, depths=Depths(d_in=2, d_out=2)).stream(6))
    assert restart_at(session, 4).exact
    with session.fork(4) as branch:
        assert same(list(branch.stream(2)), chunks[4:])


def test_two_branches_of_one_moment_are_steered_apart_and_leave_their_parent_alone(engine: Engine) -> None:
    straight = [chunk.digest for chunk in engine.session("sea", **SMALL).stream(5)]
    session = engine.session("sea", **SMALL)
    assert [chunk.digest for chunk in session.stream(3)] == straight[:3]
    alike = session.fork()
    other = session.fork()
    other.control(SetPrompt(prompt="a desert", mode="cut"))
    found = [chunk.digest for chunk in other.stream(2)]
    assert (
        [chunk.digest for chunk in alike.stream(2)]
        == [chunk.digest for chunk in session.stream(2)]
        == straight[3:]
    )
    assert not set(found) & set(straight)


@pytest.mark.parametrize("seed", [1, 5])
def test_every_leaf_of_a_random_tree_equals_its_straight_line_replay(
    engine: Engine, tmp_path: Path, seed: int
) -> None:
    tree = Tree(engine, seed, tmp_path)
    tree.grow(6)
    assert tree.differing() == 0


def test_what_a_session_keeps_is_bounded_and_given_back(
    engine: Engine, parent: tuple[Session, list[Chunk]]
) -> None:
    session, _ = parent
    assert session.trail.states == (3, 6, 9)
    assert len(session.trail.chunks) <= LIMITS.latents
    with session.fork() as branch:
        list(branch.stream(3))
        assert set(branch.trail.cache_ids) <= set(engine.generator.caches)
    assert not [name for name in engine.generator.caches if name.startswith(branch.id)]


def test_states_that_are_too_large_are_not_kept_and_the_window_is_rebuilt(engine: Engine) -> None:
    session = engine.session("sea", **SMALL)
    session.trail._limits = RewindConfig(states=3, every=3, latents=24, max_bytes=1)
    chunks = list(session.stream(8))
    assert session.trail.states == ()
    assert not restart_at(session, 7).exact, "and it says so"
    (again,) = session.fork(7).stream(1)
    assert again.frames.shape == chunks[7].frames.shape
    difference = np.abs(again.frames.astype(int) - chunks[7].frames).mean()
    assert difference < np.abs(chunks[4].frames.astype(int) - chunks[7].frames).mean(), "near what it was"


def test_an_engine_keeps_nothing_unless_asked_and_forks_all_the_same() -> None:
    engine = tiny_engine()
    session = engine.session("sea", **SMALL)
    list(session.stream(2))
    assert [name for name in engine.generator.caches if name.startswith(session.id)] == [session.id]
    with pytest.raises(
        ControlError, match="chunk 1 is not kept; this session keeps no earlier chunks: serve --rewind 8"
    ):
        session.rewind(1)
    assert [chunk.digest for chunk in session.fork().stream(1)] == [
        chunk.digest for chunk in session.stream(1)
    ]


def test_what_cannot_be_gone_back_to_is_refused_in_one_line(
    engine: Engine, parent: tuple[Session, list[Chunk]]
) -> None:
    session, _ = parent
    with pytest.raises(ControlError, match="chunk 99 is not kept; kept are 0 to 9"):
        session.fork(99)
    with pytest.raises(ControlError, match="nothing is kept before its first chunk is made"):
        engine.session("sea", **SMALL).fork(3)
    restyled = engine.session("sea", frames=moving_square(9, 2), **SMALL)
    with pytest.raises(ControlError, match="input does not come again"):
        restyled.fork()
    over = engine.session("sea", **SMALL)
    over.control(Stop())
    assert not list(over.stream())
    with pytest.raises(ControlError, match="has ended"):
        over.fork()
    with pytest.raises(ConfigError, match="every is 1 or more"):
        RewindConfig(every=0)


def test_a_branchs_journal_needs_its_parents(engine: Engine, tmp_path: Path) -> None:
    config = engine.stream_config(**SMALL)
    with JournalWriter(tmp_path / "a.jsonl", engine.journal_header(config, "a")) as journal:
        session = engine.session("sea", config=config, journal=journal, session_id="a")
        list(session.stream(2))
        named = as_parent(session, restart_at(session), "a.jsonl")
        with JournalWriter(tmp_path / "b.jsonl", engine.journal_header(config, "b", parent=named)) as own:
            list(session.fork(session_id="b", journal=own).stream(1))
        session.rewind(0)
        list(session.stream(1))
    assert [line.envelope.chunk_index for line in read_path(tmp_path / "b.jsonl").chunks] == [0, 1, 2]
    assert [line.envelope.chunk_index for line in read_journal(tmp_path / "a.jsonl").chunks] == [0], (
        "it went back"
    )
    (tmp_path / "a.jsonl").rename(tmp_path / "c.jsonl")
    with pytest.raises(JournalError, match="forked from, is not there"):
        read_path(tmp_path / "b.jsonl")
