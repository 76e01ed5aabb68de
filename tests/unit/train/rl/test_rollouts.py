"""Rollouts: what the engine serves, forks of one past, densities that can be had again, and weights of one
version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from millstream.core.errors import WeightsError
from millstream.models.fast.stack import FastStack
from millstream.ops.pixels import to_bytes
from millstream.train.evaluate.streams import BatchStream
from millstream.train.rl import rollouts
from millstream.train.rl.rollouts import RolloutEngine, RolloutPlan, fork_stream, write_version
from millstream.train.rl.steps import StepNoise
from tests.unit.train.rl.small_policy import LEVELS, PLAN, policy, tiny_config, tiny_model

SWITCHED = replace(PLAN, fork_at=2, before=("city", "desert"))
PLANS = {"from the start": PLAN, "forked": replace(PLAN, fork_at=3), "switched": SWITCHED}


def test_a_rollout_as_served_is_the_stream_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(steps=LEVELS, shift=1.0)
    engine, _ = policy(StepNoise(levels=config.noise_levels(config.steps)), config=config)
    plan = replace(PLAN, group=1)
    made = engine.roll(plan)
    stream = BatchStream(tiny_model(), plan.prompts, engine._seeds(plan)[1].tolist(), config=config)
    shown = engine.show(made).int()
    streamed = torch.cat([stream.advance() for _ in range(2)], dim=1).int()
    torch.testing.assert_close(
        shown, streamed, atol=1, rtol=0
    )  # two chunks decoded at once: rounding, of a level at most
    assert (shown != streamed).float().mean() < 0.001


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_densities_in_training_are_those_of_the_rollout(plan: RolloutPlan) -> None:
    engine, learner = policy(StepNoise(levels=(1000.0, 800.0, 500.0), eta=0.7, last=0.1))
    made = engine.roll(plan)
    rows = torch.arange(len(made))
    with torch.no_grad():
        again = learner.log_densities(made, learner.steps(learner.actor, made, rows), rows)
    assert again.shape == (4, 3, 2)
    torch.testing.assert_close(again, made.log_density_BLK, atol=1e-3, rtol=1e-6)


def test_the_fast_path_rolls_out_the_same_and_follows() -> None:
    plain, learner = policy()
    fast = RolloutEngine(learner.actor, tiny_model(), tiny_config(), plain.noise, torch.float32, is_fast=True)
    assert isinstance(fast.dit.blocks, FastStack)
    with torch.no_grad():
        learner.actor.blocks[0].self_attn.k.weight *= 1.5
    for engine in (plain, fast):
        engine.load_weights(learner.actor, 1)
    torch.testing.assert_close(
        fast.roll(PLAN).clean_BFCYX, plain.roll(PLAN).clean_BFCYX, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "best-of-n"])
def test_the_ratio_is_1_before_the_first_update(algorithm: str) -> None:
    engine, learner = policy(algorithm=algorithm, minibatches=1, rows_at_once=3)
    found = learner.learn(
        engine.roll(PLAN), torch.tensor([1.0, 2.0, 3.0, 5.0]), torch.ones(4, dtype=torch.bool), 2
    )
    assert found["ratio_off"] < 1e-5
    assert found["agreement"] < 1e-3
    assert found["kl"] == 0


def test_a_group_may_start_from_the_same_noise() -> None:
    engine, _ = policy()
    starts = [engine.roll(replace(PLAN, shared_start=shared)).starts[0] for shared in (False, True)]
    assert [torch.equal(start[0], start[1]) for start in starts] == [False, True]
    assert not torch.equal(starts[1][0], starts[1][2])


def test_a_forked_group_has_one_past_and_several_futures() -> None:
    engine, _ = policy()
    made = engine.roll(replace(PLAN, fork_at=1, group=3, chunks=1))
    assert torch.equal(made.past_BFCYX[0], made.past_BFCYX[2])
    assert not torch.equal(made.past_BFCYX[0], made.past_BFCYX[3])
    assert not torch.equal(made.clean_BFCYX[0], made.clean_BFCYX[1])
    assert engine.show(made).shape == (6, 12, 3, 32, 32)


def test_a_future_is_shown_as_if_its_past_had_been_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither a group nor all pasts are decoded at once."""
    monkeypatch.setattr(rollouts, "DECODED", 2)
    engine, _ = policy()
    made = engine.roll(replace(PLAN, prompts=("sea", "hills", "city"), fork_at=1, group=3, chunks=1))
    whole, _ = engine.model.vae.decode(torch.cat([made.past_BFCYX, made.clean_BFCYX], dim=1), ())
    difference = engine.show(made).int() - to_bytes(whole)[:, -12:].int()
    assert difference.abs().max() <= 1, "rounding: other rows are decoded together"


def test_a_fork_that_does_what_its_parent_did_gives_the_parents_latents() -> None:
    """The same noise after a fork, and without one."""
    engine, _ = policy()
    seeds = torch.tensor([3, 4])
    cross = engine._cross(engine.read(("sea", "hills")))
    straight = engine._ring(2)
    engine._chunk(straight, cross, seeds, 0)
    forked = fork_stream(straight, 2)
    expected = engine._chunk(straight, cross, seeds, 1).clean_BFCYX
    twice = engine._cross(engine.read(("sea", "hills")).repeat_interleave(2, dim=0))
    found = engine._chunk(forked, twice, seeds.repeat_interleave(2), 1).clean_BFCYX
    torch.testing.assert_close(found, expected.repeat_interleave(2, dim=0), atol=1e-6, rtol=1e-6)


def test_weights_of_two_versions_are_never_mixed() -> None:
    engine, learner = policy()
    made = engine.roll(PLAN)
    reward = torch.tensor([1.0, 2.0, 3.0, 5.0])
    known = torch.ones(4, dtype=torch.bool)
    learner.learn(made, reward, known, 2)
    with pytest.raises(AssertionError, match="version 0 for a policy of version 1"):
        learner.learn(made, reward, known, 2)
    engine.load_weights(learner.actor, learner.version)
    assert engine.roll(PLAN).version == 1
    assert torch.equal(engine.dit.head.proj.weight, learner.actor.head.proj.weight)


def test_weights_change_within_no_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, learner = policy()
    chunk = engine._chunk

    def and_follow(*given: object) -> object:
        engine.load_weights(learner.actor, engine.version + 1)
        return chunk(*given)

    monkeypatch.setattr(engine, "_chunk", and_follow)
    with pytest.raises(AssertionError, match="within a rollout"):
        engine.roll(PLAN)


def test_nothing_is_rolled_out_of_weights_that_are_half_written() -> None:
    engine, learner = policy()

    def fail(weights: object) -> int:
        raise OSError("the other rank is gone")

    with pytest.raises(OSError, match="gone"):
        engine.load_weights_by(fail)
    with pytest.raises(AssertionError, match="being written"):
        engine.roll(PLAN)
    engine.load_weights(learner.actor, 1)
    assert engine.roll(PLAN).version == 1


def test_weights_travel_by_file_with_their_version(tmp_path: Path) -> None:
    engine, learner = policy()
    with torch.no_grad():
        learner.actor.head.proj.bias += 1
    write_version(tmp_path / "actor.safetensors", learner.actor, 5)
    engine.load_weights_file(tmp_path / "actor.safetensors")
    assert engine.version == 5
    assert torch.equal(engine.dit.head.proj.bias, learner.actor.head.proj.bias)
    for wrong in (tmp_path / "none.safetensors", tmp_path / "text.safetensors"):
        (tmp_path / "text.safetensors").write_text("no weights")
        with pytest.raises(WeightsError):
            engine.load_weights_file(wrong)
