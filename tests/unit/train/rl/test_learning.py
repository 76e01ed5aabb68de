"""Advantages by hand, the clipped objective, what holds a policy back, and learning where the best is
known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from millstream.train.rl.advantages import best_of_group, generalised, group_relative, standardised
from millstream.train.rl.algorithms import PictureWorth
from millstream.train.rl.control import DivergenceControl, Evaluated, best_by_judge, have_parted
from millstream.train.rl.learner import ReferenceLearner
from millstream.train.rl.objective import clipped_policy, importance
from millstream.train.rl.rollouts import RolloutPlan, Trajectories
from millstream.train.rl.steps import StepNoise
from tests.unit.train.rl.small_policy import LEVELS, PLAN, following, policy, tiny_config

KNOWN = torch.ones(4, dtype=torch.bool)


def test_an_advantage_is_a_distance_from_the_groups_mean_in_standard_deviations() -> None:
    assert group_relative(torch.tensor([1.0, 3.0]), KNOWN[:2], 2).tolist() == pytest.approx([-1, 1], abs=1e-4)


def test_a_group_whose_streams_are_worth_nearly_the_same_says_nearly_nothing() -> None:
    """A reward that is reached is not squeezed for its last thousandths."""
    found = group_relative(torch.tensor([0.0, 1.0, 0.999, 1.0]), KNOWN, 2)
    assert found.tolist() == pytest.approx([-(2**0.5), 2**0.5, -0.0014, 0.0014], abs=1e-3)


def test_a_row_without_a_reward_changes_nobodys_advantage() -> None:
    known = torch.tensor([True, True, False])
    found = group_relative(torch.tensor([1.0, 3.0, 99.0]), known, 3)
    assert found.tolist() == pytest.approx([-1, 1, 0], abs=1e-4)
    assert best_of_group(torch.tensor([1.0, 3.0, 99.0]), known, 3).tolist() == [0, 1, 0]
    assert best_of_group(torch.tensor([1.0]), torch.tensor([False]), 1).tolist() == [0]


def test_generalised_advantages_are_the_sums_they_stand_for() -> None:
    reward = torch.tensor([[0.0, 1.0, 2.0]])
    value = torch.tensor([[0.5, 0.25, 1.0]])
    discount = 0.9
    trace = 0.8
    after = [*value[0, 1:].tolist(), 0.0]
    surprise = [float(reward[0, t] + discount * after[t] - value[0, t]) for t in range(3)]
    expected = [
        sum((discount * trace) ** (later - t) * surprise[later] for later in range(t, 3)) for t in range(3)
    ]
    advantage, returns = generalised(reward, value, discount=discount, trace=trace)
    assert advantage[0].tolist() == pytest.approx(expected)
    assert returns[0].tolist() == pytest.approx(
        [a + v for a, v in zip(expected, value[0].tolist(), strict=True)]
    )
    even = standardised(advantage.repeat(2, 1), torch.tensor([True, False]))
    assert float(even[0].mean()) == pytest.approx(0, abs=1e-6)
    assert not even[1].any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "follows"),
    [
        (1.0, 2.0, -2.0, True),
        (1.5, 2.0, -2.4, False),
        (0.5, 2.0, -1.0, True),
        (0.5, -2.0, 1.6, False),
        (1.5, -2.0, 3.0, True),
    ],
)
def test_nothing_is_gained_beyond_the_clip(
    ratio: float, advantage: float, loss: float, follows: bool
) -> None:
    new = torch.tensor([[ratio]]).log().requires_grad_(True)
    found = clipped_policy(new, torch.zeros(1, 1), torch.tensor([[advantage]]), torch.ones(1, 1), 0.2)
    found.loss.backward()
    assert float(found.loss.detach()) == pytest.approx(loss)
    assert bool(new.grad) is follows
    assert bool(found.clipped) is not follows


def test_what_older_weights_sampled_counts_as_if_it_were_sampled_now() -> None:
    """Estimate the mean of a newer normal out of samples of an older one; with ratios cut off it falls a
    little short."""
    then = torch.distributions.Normal(0.0, 1.0)
    now = torch.distributions.Normal(0.5, 1.0)
    torch.manual_seed(0)
    sampled = then.sample((200_000,))
    means = {
        most: float((importance(now.log_prob(sampled), then.log_prob(sampled), most) * sampled).mean())
        for most in (50, 2)
    }
    assert float(sampled.mean()) == pytest.approx(0.0, abs=0.01)
    assert means[50] == pytest.approx(0.5, abs=0.01)
    assert 0.3 < means[2] < means[50]


def test_the_coefficient_follows_the_divergence_and_beyond_the_bound_rewards_count_for_nothing() -> None:
    control = DivergenceControl(coefficient=1.0, target=2.0, bound=5.0)
    control.adjust(0.1)
    assert control.coefficient == 1.0, "it waits for what comes"
    control.adjust(2.5)
    assert control.coefficient == 1.25
    control.adjust(9.0)
    assert control.coefficient == 1.875
    control.adjust(0.1)
    assert control.coefficient == 1.25
    assert (control.share(1.0), control.share(8.0)) == (1.0, 0.5)
    assert (control.is_beyond(4.0), control.is_beyond(6.0)) == (False, True)
    free = DivergenceControl(coefficient=0.0, target=0.0, bound=5.0)
    free.adjust(99.0)
    assert (free.coefficient, free.is_beyond(99.0), free.share(99.0)) == (0.0, False, 1.0)


def test_reward_and_judge_part_when_one_rises_while_the_other_falls_for_long_enough() -> None:
    rising = [Evaluated(step, reward=step, judge=0.1 * step) for step in range(4)]
    parted = [*rising, Evaluated(4, 4, 0.2), Evaluated(5, 5, 0.1)]
    assert not have_parted(rising, tolerance=0.05, patience=2)
    assert not have_parted(parted[:5], tolerance=0.05, patience=2)
    assert have_parted(parted, tolerance=0.05, patience=2)
    assert not have_parted(parted, tolerance=0.25, patience=2)
    assert not have_parted([*rising, Evaluated(4, 1, 0.2), Evaluated(5, 1, 0.1)], tolerance=0.05, patience=2)
    assert best_by_judge(parted).step == 3


TARGET = 0.5


def worth(made: Trajectories) -> Tensor:
    """Best, at 0, for streams whose latents have this mean."""
    return -(made.clean_BFCYX.mean(dim=(1, 2, 3, 4)) - TARGET).square()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_policy_finds_an_optimum_that_is_known(algorithm: str) -> None:
    noise = StepNoise(levels=LEVELS, last=0.3)
    engine, learner = policy(
        noise, algorithm=algorithm, lr=2e-3, minibatches=1, rows_at_once=16, critic_epochs=2
    )
    found = []
    for step in range(14):
        made = engine.roll(RolloutPlan(prompts=("sea",), group=16, chunks=1, seed=step))
        found.append(float(made.clean_BFCYX.mean()))
        learner.learn(made, worth(made), torch.ones(16, dtype=torch.bool), 16)
        engine.load_weights(learner.actor, learner.version)
    assert abs(found[0] - TARGET) > 0.3
    assert sum(found[-3:]) / 3 == pytest.approx(TARGET, abs=0.12), found


@pytest.mark.slow
def test_a_bound_holds_a_policy_to_its_reference() -> None:
    """The same reward pulls a held one less far."""
    apart = []
    for control in (DivergenceControl(0.0, 0.0, 1.0), DivergenceControl(1.0, 0.05, 0.2)):
        engine, learner = policy(
            StepNoise(levels=LEVELS, last=0.3), control, lr=1e-3, minibatches=1, rows_at_once=16
        )
        for step in range(6):
            made = engine.roll(RolloutPlan(prompts=("sea",), group=8, chunks=1, seed=step))
            said = learner.learn(made, worth(made), torch.ones(8, dtype=torch.bool), 8)
            engine.load_weights(learner.actor, learner.version)
        apart.append(said["kl"])
    assert apart[1] < 0.5 * apart[0]


def apart_from_reference(learner: ReferenceLearner, made: Trajectories) -> float:
    """Mean square of how far the actor's steps lead elsewhere than the reference's, from the same starts."""
    rows = torch.arange(len(made))
    with torch.no_grad():
        pairs = zip(
            learner.steps(learner.actor, made, rows),
            learner.steps(learner.reference, made, rows),
            strict=True,
        )
        return float(
            torch.stack(
                [(mine.mean_BFCYX - theirs.mean_BFCYX).square().mean() for mine, theirs in pairs]
            ).mean()
        )


@pytest.mark.parametrize("coefficient", [0.0, 1.0])
def test_what_holds_a_policy_leads_it_back_to_its_reference(coefficient: float) -> None:
    """Streams that are all worth the same teach nothing, so it alone moves the actor; without it nothing
    does. The target is too far to be passed: weights are not drawn back besides."""
    control = DivergenceControl(coefficient, 1e6, 1e6)
    engine, learner = policy(
        StepNoise(levels=LEVELS, last=0.3), control, lr=1e-4, minibatches=1, rows_at_once=4
    )
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in learner.actor.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter) * parameter.abs().mean())
    engine.load_weights(learner.actor, learner.version)
    made = engine.roll(PLAN)
    found = [apart_from_reference(learner, made)]
    for _ in range(3):
        said = learner.learn(made, torch.ones(4), KNOWN, 2)
        made = replace(made, version=learner.version)
        found.append(apart_from_reference(learner, made))
    assert found[0] > 0
    if coefficient:
        assert found == sorted(found, reverse=True), "nearer with every step"
        assert found[-1] < 0.9 * found[0]
    else:
        assert found == pytest.approx([found[0]] * 4)
        assert said["norm"] == 0


def nearness(made: Trajectories, clean_BFCYX: Tensor, rows: Tensor) -> Tensor:
    """The same, of chunks that gradients flow back to."""
    return -(clean_BFCYX.mean(dim=(1, 2, 3, 4)) - TARGET).square()


def followed(target: float) -> tuple[list[float], list[float]]:
    """Divergences, and the means of what was streamed, where the last step is not random."""
    control = DivergenceControl(0.0, target, 99.0)
    noise = StepNoise(levels=LEVELS)
    engine, learner = following(nearness, noise, control, lr=2e-3, minibatches=1)
    apart = []
    means = []
    rows = torch.arange(4)
    for step in range(5):
        made = engine.roll(RolloutPlan(prompts=("sea",), group=4, chunks=1, seed=step))
        again = learner.finished(made, learner.steps(learner.actor, made, rows), rows)
        torch.testing.assert_close(again.detach(), made.clean_BFCYX, atol=1e-5, rtol=0)
        apart.append(learner.learn(made, worth(made), KNOWN, 4)["kl"])
        means.append(float(made.clean_BFCYX.mean()))
        engine.load_weights(learner.actor, learner.version)
    return apart, means


@pytest.mark.slow
def test_a_policy_that_follows_gradients_finds_the_optimum_or_stays_within_its_region() -> None:
    """Whatever the rate: the coefficient of what holds it is 0 here."""
    free, means = followed(0.0)
    assert abs(means[-1] - TARGET) < 0.5 * abs(means[0] - TARGET), means
    held, _ = followed(0.5)
    assert max(held) < 6 * 0.5 < 0.5 * max(free), (held, free)


def last_nearness(made: Trajectories, clean_BFCYX: Tensor, rows: Tensor) -> Tensor:
    """Of the last chunk alone, which the others lead to."""
    return nearness(made, clean_BFCYX[:, -tiny_config().frames_per_chunk :], rows)


@pytest.mark.parametrize(("chunks", "told"), [(1, nearness), (3, nearness), (3, last_nearness)])
def test_the_gradient_that_is_followed_is_that_of_streaming_again_with_other_weights(
    chunks: int, told: PictureWorth
) -> None:
    """Compare the gradients of whole streams, whose later chunks follow what the earlier ones became, with
    finite differences in a direction of all weights."""
    engine, learner = following(told, StepNoise(levels=LEVELS))
    plan = RolloutPlan(prompts=("sea",), group=2, chunks=chunks, seed=3)
    rows = torch.arange(2)
    made = engine.roll(plan)
    told(made, learner.finished(made, learner.steps(learner.actor, made, rows), rows), rows).sum().backward()
    weights = list(learner.actor.parameters())
    torch.manual_seed(1)
    way = [torch.randn_like(weight) * weight.detach().abs().mean() for weight in weights]
    slope = sum(
        float((weight.grad * by).sum())
        for weight, by in zip(weights, way, strict=True)
        if weight.grad is not None
    )
    found = []
    for far in (1e-2, -2e-2):
        with torch.no_grad():
            torch._foreach_add_(weights, way, alpha=far)
        engine.load_weights(learner.actor, 1)
        again = engine.roll(plan)
        found.append(float(told(again, again.clean_BFCYX, rows).sum()))
    assert (found[0] - found[1]) / 2e-2 == pytest.approx(slope, rel=0.05)


def test_weights_learn_by_the_chosen_steps_alone() -> None:
    def gradient(*only: int) -> Tensor:
        engine, learner = following(nearness, StepNoise(levels=LEVELS, only=only))
        made = engine.roll(PLAN)
        rows = torch.arange(4)
        nearness(
            made, learner.finished(made, learner.steps(learner.actor, made, rows), rows), rows
        ).sum().backward()
        slope = learner.actor.head.proj.weight.grad
        assert slope is not None
        return slope

    assert not torch.allclose(gradient(), gradient(0), rtol=0.1)


def test_rows_that_are_left_out_teach_nothing() -> None:
    """A wild reward that is not known leaves the same weights as none."""
    learnt = []
    for wild in (0.0, 1e6):
        engine, learner = policy(minibatches=1)
        reward = torch.tensor([1.0, 2.0, wild, wild])
        known = torch.tensor([True, True, False, False])
        learner.learn(engine.roll(PLAN), reward, known, 2)
        learnt.append(learner.actor.head.proj.weight.detach().clone())
    assert torch.equal(*learnt)
    engine, learner = policy()
    assert learner.learn(engine.roll(PLAN), torch.zeros(4), torch.zeros(4, dtype=torch.bool), 2) == {}


def test_a_learner_goes_on_to_the_same_bits() -> None:
    def run(stop: int) -> Tensor:
        engine, learner = policy(algorithm="ppo", lr=1e-3)
        for step in range(3):
            if step == stop:
                state = learner.state()
                engine, learner = policy(algorithm="ppo", lr=1e-3)
                learner.load_state(state)
                engine.load_weights(learner.actor, learner.version)
            made = engine.roll(RolloutPlan(prompts=("sea",), group=4, chunks=1, seed=step))
            learner.learn(made, worth(made), KNOWN, 4)
            engine.load_weights(learner.actor, learner.version)
        return learner.actor.head.proj.weight.detach()

    assert torch.equal(run(stop=2), run(stop=-1))
