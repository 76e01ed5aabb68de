"""Reward-weighted distribution matching: what rows count, and to whom pictures are pulled."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.core.presets import find_model
from millstream.train.rl.learner import LearnerOptions
from millstream.train.rl.matching import RewardMatching, reward_weights
from millstream.train.rl.rollouts import RolloutEngine, RolloutPlan
from millstream.train.rl.steps import StepNoise
from tests.unit.train.rl.small_policy import CPU, LEVELS, PLAN, tiny_config, tiny_model
from tests.unit.train.rl.test_policy_run import nothing, recipe, run


def matching(shift: float, **options: object) -> tuple[RolloutEngine, RewardMatching]:
    """A teacher that is the actor, but for flows that are this much lower: its pictures are brighter."""
    model = tiny_model()
    config = tiny_config()
    noise = StepNoise(levels=LEVELS)
    actor, teacher = (deepcopy(model.dit).requires_grad_(True) for _ in range(2))
    with torch.no_grad():
        teacher.head.proj.bias -= shift
    engine = RolloutEngine(actor, model, config, noise, torch.float32)
    learner = RewardMatching(
        actor, teacher, engine.read(("",)), noise, config, LearnerOptions(**{"steps": 1, **options}), CPU
    )
    learner._critic.load_state_dict(model.dit.state_dict())  # who knows the actor's pictures already
    return engine, learner


def test_rows_count_by_their_reward_within_their_group() -> None:
    known = torch.tensor([True, True, True, True, True, False])
    found = reward_weights(torch.tensor([0.0, 1.0, 2.0, 5.0, 5.0, 9.0]), known, 3, 1.0)
    assert float(found[:3].sum()) == pytest.approx(3)
    assert float(found[2] / found[0]) == pytest.approx(
        float(torch.tensor(10**0.5).exp()), rel=1e-3
    )  # 2 over a std of sqrt(2 / 5)
    assert found[3:].tolist() == pytest.approx([1, 1, 0])
    assert not reward_weights(torch.zeros(2), torch.zeros(2, dtype=torch.bool), 2, 1.0).any()


@pytest.mark.slow
def test_pictures_are_pulled_to_the_teachers() -> None:
    engine, learner = matching(0.5, lr=1e-3, critic_lr=1e-5, guidance=1.0)
    plan = RolloutPlan(prompts=("sea",), group=4, chunks=1, seed=1)
    known = torch.ones(4, dtype=torch.bool)
    brightness = []
    for _ in range(6):
        made = engine.roll(plan)
        brightness.append(float(made.clean_BFCYX.mean()))
        learner.learn(made, torch.arange(4.0), known, 4)
        engine.load_weights(learner.actor, learner.version)
    assert brightness[-1] > brightness[0] + 0.05, brightness


def test_rows_without_a_reward_teach_an_actor_nothing() -> None:
    def learnt(wild: float) -> Tensor:
        engine, learner = matching(0.5)
        reward = torch.tensor([1.0, 2.0, wild, wild])
        known = torch.tensor([True, True, False, False])
        learner.learn(engine.roll(PLAN), reward, known, 2)
        return learner.actor.head.proj.weight.detach()

    assert torch.equal(learnt(0.0), learnt(1e6))


@pytest.mark.slow
def test_a_run_by_matching_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    asked = recipe(algorithm="matching", teacher=("random:4",), steps=2)
    whole, first, second = (run(tmp_path / name, asked) for name in ("whole", "parts", "parts"))
    assert whole.train(nothing, lambda: False)
    assert not first.train(nothing, lambda: True)
    assert second.train(nothing, lambda: False)
    assert all(torch.equal(weight, second.learnt()[name]) for name, weight in whole.learnt().items())


@pytest.mark.parametrize("wrong", [dict(algorithm="matching"), dict(teacher=("random:4",))])
def test_matching_has_a_teacher_and_nothing_else_does(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="needs a teacher"):
        recipe(**wrong).check(find_model("wan-tiny"), Path())
