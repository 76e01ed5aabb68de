"""Chunks of several sessions in the same model calls: each row is what its session would be alone."""

from __future__ import annotations

import pytest
import torch

from millstream.core.controls import Cut, SetKVBias, SetPrompt
from millstream.generation.generator import envelope_batch_key
from millstream.session.session import Session
from tests.unit.models_for_tests import relative_error, tiny_engine
from tests.unit.one_chunk import accept
from tests.unit.rounds import make_together

pytestmark = pytest.mark.slow

SMALL = dict(height=16, width=32)


def advance(engine: object, sessions: list[Session]) -> list[torch.Tensor]:
    """The next chunk of all, together; returns their latents."""
    first, *others = [chunk.timing.phases_ms["step"] for chunk in make_together(engine, sessions)]
    assert others == [first] * len(others)
    assert first > 0
    return [newest(session) for session in sessions]


def newest(session: Session) -> torch.Tensor:
    return session._history._latents[max(session._history._latents)]


@pytest.mark.parametrize(
    "stream",
    [
        {},
        dict(window=6, sink=2, positions="windowed"),
        dict(context_noise=50.0),
        dict(sampler="unipc", steps=(1000, 700, 400), frames_per_chunk=1),
    ],
)
def test_sessions_in_one_batch_give_the_latents_they_give_alone(stream: dict) -> None:
    engine = tiny_engine()
    pairs = [(engine.session(prompt, seed=seed, **SMALL, **stream), engine.session(prompt, seed=seed, **SMALL, **stream))
             for seed, prompt in enumerate(("sea", "hills", "a city at night"))]  # fmt: skip
    together, alone = [list(side) for side in zip(*pairs, strict=True)]
    next(together[1].stream(1))  # one is a chunk ahead: other frames, a fuller ring
    next(alone[1].stream(1))
    for chunk in range(4):
        if chunk == 2:
            for side in (together, alone):
                side[0].control(SetPrompt(prompt="rain", mode="recompute"))
                side[1].control(Cut())
                side[2].control(SetKVBias(kv_bias=0.5))
        found = advance(engine, together)
        for session, latents in zip(alone, found, strict=True):
            next(session.stream(1))
            assert relative_error(latents, newest(session)) < 1e-3


@pytest.mark.parametrize(
    "other", [dict(sampler="unipc"), dict(first_steps=(1000,)), dict(frames_per_chunk=1)], ids=str
)
def test_chunks_that_are_denoised_otherwise_share_no_call(other: dict) -> None:
    engine = tiny_engine()
    plain = dict(SMALL, steps=(1000, 500))
    sessions = [engine.session("sea", **plain), engine.session("sea", **(plain | other))]
    one, another = [session.decide().envelope for session in sessions]
    assert envelope_batch_key(one) != envelope_batch_key(another)


def test_one_refused_parcel_does_not_hold_up_the_rest() -> None:
    engine = tiny_engine()
    good = engine.session("sea", **SMALL)
    bad = engine.session("sea", **SMALL)
    for session in (good, bad):
        next(session.stream(1))
    parcels = [session.prepare(session.decide()) for session in (good, bad)]
    engine.generator.release(bad.id)
    kept, refused = engine.generator.run_together(parcels)
    assert kept.result.ok
    assert not refused.result.ok
    assert "init_cache" in refused.result.error
    assert accept(good, kept) is not None
