"""A commit that comes after its chunk's pictures, or goes with the next chunk's first call: the same
stream."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from millstream.core.controls import Cut, SetKVBias, SetPrompt
from millstream.engine.engine import Engine
from millstream.generation.generator import Commits
from millstream.session.session import Session
from tests.unit.models_for_tests import relative_error

pytestmark = pytest.mark.slow

SMALL = dict(height=16, width=32, window=6)


class Counted(torch.nn.Module):
    """A DiT that says how many frames each of its calls had."""

    def __init__(self, dit: torch.nn.Module) -> None:
        super().__init__()
        self.dit = dit
        self.steps = []
        self.commits = 0
        self.config = dit.config
        self.cached_layers = dit.cached_layers
        self.cached_heads = dit.cached_heads
        self.read_prompt = dit.read_prompt

    def forward(self, latents: Tensor, *rest: object) -> Tensor:
        self.steps.append(latents.shape[1])
        return self.dit(latents, *rest)

    def commit(self, *args: object) -> None:
        self.commits += 1
        self.dit.commit(*args)


def counted_engine(commits: Commits) -> Engine:
    engine = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")
    engine.generator.dit = Counted(engine.generator.dit)
    engine.generator.commits = commits
    return engine


def newest(session: Session) -> Tensor:
    return session._history._latents[max(session._history._latents)]


def streamed(engine: Engine, **stream: object) -> Tensor:
    session = engine.session("sea", **SMALL, **stream)
    session.control(SetPrompt(prompt="hills", mode="keep"), at_chunk=3)
    session.control(SetPrompt(prompt="rain", mode="recompute"), at_chunk=5)
    session.control(SetKVBias(kv_bias=0.5), at_chunk=6)
    session.control(Cut(), at_chunk=8)
    return torch.cat([newest(session) for _ in session.stream(11)])


@pytest.mark.parametrize("stream", [{}, dict(context_noise=40.0), dict(sink=2)])
def test_carried_commits_leave_the_stream_as_it_is(stream: dict) -> None:
    plain = counted_engine("at once")
    deferring = counted_engine("paired")
    assert relative_error(streamed(deferring, **stream), streamed(plain, **stream)) < 1e-5
    carried = deferring.generator.dit.steps.count(6)
    assert carried == 7, "all but the first of each epoch and those after a switch"
    assert len(deferring.generator.dit.steps) == len(plain.generator.dit.steps)
    assert deferring.generator.dit.commits <= plain.generator.dit.commits - carried


@pytest.mark.parametrize(
    "stream", [{}, dict(context_noise=40.0), dict(sink=2), dict(sink=2, positions="windowed")]
)
def test_a_commit_that_comes_later_changes_no_bit(stream: dict) -> None:
    at_once = counted_engine("at once")
    later = counted_engine("later")
    assert torch.equal(streamed(later, **stream), streamed(at_once, **stream))
    assert later.generator.dit.steps == at_once.generator.dit.steps
    forgotten = at_once.generator.dit.commits - later.generator.dit.commits
    assert forgotten == 3, "before a cut, a window that is built anew, and the end"


def test_pictures_come_before_the_commit_until_the_engine_is_told_to_settle() -> None:
    engine = counted_engine("later")
    session = engine.session("sea", **SMALL)
    for chunk in range(3):
        next(session.stream(1))
        assert engine.generator.dit.commits == chunk
        engine.run_commit(session.id)
        assert engine.generator.dit.commits == chunk + 1


def test_a_session_settles_its_own_commit_and_nobody_elses() -> None:
    """Whose chunk is measured with the commits of four looks half as fast as it is, and the promise falls by
    that."""
    engine = counted_engine("later")
    first, second = (engine.session("sea", **SMALL) for _ in range(2))
    for session in (first, second):
        next(session.stream(1))
    engine.run_commit(second.id)
    assert engine.generator.dit.commits == 1
    assert engine.generator.caches[second.id].owed is None
    assert engine.generator.caches[first.id].owed is not None
    engine.run_commit(second.id)
    assert engine.generator.dit.commits == 1, "it owes no more"


def test_a_sink_that_turns_is_committed_before_it_does() -> None:
    stream = dict(sink=2, positions="windowed")
    plain = counted_engine("at once")
    deferring = counted_engine("paired")
    assert relative_error(streamed(deferring, **stream), streamed(plain, **stream)) < 1e-5
    assert set(deferring.generator.dit.steps) == {3}


def test_what_is_owed_is_settled_before_a_cache_is_moved() -> None:
    plain = counted_engine("at once")
    deferring = counted_engine("paired")
    keys = []
    for engine in (plain, deferring):
        session = engine.session("sea", **SMALL)
        next(session.stream(1))
        owed = engine.generator.caches[session.id].owed
        assert (owed is not None) == (engine is deferring)
        engine.offload(session)
        assert engine.generator.caches[session.id].owed is None
        keys.append(engine.generator.caches[session.id].ring.k)
    assert torch.equal(*keys)
