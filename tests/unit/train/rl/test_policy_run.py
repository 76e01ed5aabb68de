"""Runs of tuning by reward: recipes that are refused, runs that go on to the same bits, rewards that fail,
early stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from millstream.core.errors import ConfigError, RewardFailed
from millstream.core.presets import find_model
from millstream.train.recipe import RECIPES
from millstream.train.reward.clips import RewardClips
from millstream.train.reward.rewards import RewardPlan, RewardSet
from millstream.train.rl.evaluation import Evaluation
from millstream.train.rl.prompting import evaluated_prompts, step_plan
from millstream.train.rl.recipe import PolicyRecipe, read_policy_recipe
from millstream.train.rl.run import PolicyReport, PolicyRun, make_actor, make_batches
from tests.unit.train.rl.small_policy import CPU

pytestmark = pytest.mark.slow

SPEC = find_model("wan-tiny")
SMALL = dict(
    model="wan-tiny", weights=("random:3",), steps=3, height=32, width=32, prompts=("sea", "hills"), prompts_per_step=1,
    group=3, chunks=1, evaluate_every=2, evaluate_prompts=2, checkpoint_every=1, lr=1e-3, rewards=(RewardPlan(kind="motion"),),
)  # fmt: skip


def recipe(**changes: object) -> PolicyRecipe:
    return PolicyRecipe(**(SMALL | changes))


def run(folder: Path, asked: PolicyRecipe) -> PolicyRun:
    folder.mkdir(exist_ok=True)
    return PolicyRun(asked, SPEC, folder, folder, CPU)


def nothing(report: PolicyReport) -> None:
    """Nobody looks."""


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    asked = recipe(steps=2, fork=(1, 1), algorithm="ppo", shared_start=False, evaluate_prompts=1, ema=0.5)
    whole, first, second = (run(tmp_path / name, asked) for name in ("whole", "parts", "parts"))
    assert whole.train(nothing, lambda: False)
    assert not first.train(nothing, lambda: True)
    assert second.train(nothing, lambda: False)
    for name, weight in whole.learnt().items():
        assert torch.equal(weight, second.learnt()[name]), name
    assert [each.step for each in second.evaluated] == [0, 2]
    assert second.evaluated == whole.evaluated
    assert len((tmp_path / "parts" / "curve.jsonl").read_text().splitlines()) == 2
    assert '"judge"' not in (tmp_path / "parts" / "evaluations.jsonl").read_text(), "nobody judged"


@pytest.mark.slow
def test_a_reward_that_fails_leaves_a_run_that_can_go_on(tmp_path: Path) -> None:
    tmp_path.joinpath("moods.py").write_text(
        "calls = 0\ndef mood(frames, prompt, fps):\n    global calls\n    calls += 1\n"
        "    if calls > 5:\n        raise RuntimeError('tired')\n    return frames.mean()\n"
    )
    asked = recipe(rewards=(RewardPlan(kind="python", call="moods:mood"),), reward_patience=3)
    failing = run(tmp_path, asked)
    with pytest.raises(RewardFailed, match="RuntimeError: tired"):
        failing.train(nothing, lambda: False)
    going_on = run(tmp_path, asked)
    assert going_on.load() == 1, "the step before is kept"
    assert all(weight.isfinite().all() for weight in going_on.learnt().values())


@pytest.mark.slow
def test_a_run_ends_where_reward_and_judge_part_and_keeps_the_weights_the_judge_liked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([(0.0, 0.5), (1.0, 0.6), (2.0, 0.3)])

    def judged(*_: object, **__: object) -> Evaluation:
        reward, judge = next(found)
        return Evaluation(
            reward=reward, terms={}, judge=judge, attributes={}, flicker=0.0, pixels_BTCYX=torch.zeros(0)
        )

    monkeypatch.setattr("millstream.train.rl.batches.evaluate", judged)
    ended = run(
        tmp_path, recipe(steps=9, evaluate_every=1, part_patience=1, chunks=3, group=2, judge="bundled")
    )
    seen = list[dict[str, torch.Tensor]]()
    assert ended.train(nothing, lambda: False, lambda step, found, so_far: seen.append(ended._learnt_now()))
    assert ended.has_parted
    assert [each.step for each in ended.evaluated] == [0, 1, 2]
    best = ended.learnt()
    assert all(torch.equal(best[name], weight) for name, weight in seen[1].items())
    assert not torch.equal(best["head.proj.weight"], seen[2]["head.proj.weight"])


def test_of_the_prompts_that_are_tried_those_worth_least_are_learnt_from(tmp_path: Path) -> None:
    asked = recipe(tried=3, prompts_per_step=1)
    found = make_batches(asked, SPEC, make_actor(asked, SPEC, CPU), tmp_path, CPU, threaded=False)
    plan = replace(step_plan(asked, 0), prompts=("sea", "hills", "city"))
    trial = replace(plan, group=1)
    worth = found.score(trial, found.engine.roll(trial)).total_B
    assert found.least_worth(plan) == replace(plan, prompts=(plan.prompts[int(worth.argmin())],))
    assert len(step_plan(asked, 0).prompts) == 3


def test_who_follows_gradients_learns_from_the_streams_that_missed_most(tmp_path: Path) -> None:
    asked = recipe(algorithm="gradient", tried=3, group=2, chunks=2, fork=(1, 1))
    found = make_batches(asked, SPEC, make_actor(asked, SPEC, CPU), tmp_path, CPU, threaded=False)
    plan = replace(step_plan(asked, 0), prompts=("sea", "hills", "city"))
    made = found.engine.roll(plan)
    scored = found.score(plan, made)
    least = int(scored.total_B.view(3, 2).mean(dim=1).argmin())
    chosen, theirs = found.missed(made, scored)
    assert chosen.prompts == (plan.prompts[least],) * 2
    assert torch.equal(theirs.total_B, scored.total_B[2 * least : 2 * least + 2])
    pictures = [found.engine.show(each) for each in (made, chosen)]
    theirs_before = pictures[0][2 * least : 2 * least + 2].float()
    torch.testing.assert_close(pictures[1].float(), theirs_before, atol=1, rtol=0)  # with their own past
    assert len(found.make(0).made) == 2, "one prompt of three"


def test_an_average_of_the_weights_is_what_is_evaluated_and_exported(tmp_path: Path) -> None:
    found = run(tmp_path, recipe(steps=1, ema=0.5, evaluate_prompts=1))
    before = found.actor.head.proj.weight.detach().clone()
    assert found.train(nothing, lambda: False)
    after = found.actor.head.proj.weight.detach()
    torch.testing.assert_close(
        found.learnt()["head.proj.weight"], before.lerp(after, 0.9)
    )  # a young one follows closely
    assert torch.equal(found.learnt()["head.proj.weight"], found.engine.dit.head.proj.weight)


def test_gradients_of_a_classifier_reach_the_weights_through_pictures(tmp_path: Path) -> None:
    rewards = (RewardPlan(kind="attributes", names=("setting",), views=2),)
    asked = recipe(
        algorithm="gradient",
        steps=1,
        chunks=3,
        group=2,
        prompts=("the sea",),
        evaluate_prompts=1,
        rewards=rewards,
    )
    found = run(tmp_path, asked)
    said = list[PolicyReport]()
    before = found.actor.head.proj.weight.detach().clone()
    assert found.train(said.append, lambda: False)
    assert said[0].numbers["policy"] > 0, "less the logarithm of a probability"
    assert said[0].numbers["norm"] > 0
    assert not torch.equal(before, found.actor.head.proj.weight)


def test_runs_of_other_seeds_look_at_pictures_in_other_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[int]()

    def followed(self: RewardSet, clips: RewardClips, generator: torch.Generator) -> torch.Tensor:
        looks.append(generator.initial_seed())
        return clips.pixels_BTCYX.mean(dim=(1, 2, 3, 4))

    monkeypatch.setattr(RewardSet, "followed", followed)
    for seed in (0, 0, 1):
        asked = recipe(algorithm="gradient", seed=seed)
        batches = make_batches(asked, SPEC, make_actor(asked, SPEC, CPU), tmp_path, CPU, threaded=False)
        made = batches.engine.roll(replace(step_plan(asked, 0), group=1))
        batches.worth(made, made.clean_BFCYX, torch.arange(1))
    assert looks[0] == looks[1] != looks[2]


def test_where_a_run_keeps_what_learns_changes_nothing(tmp_path: Path) -> None:
    """On a CPU, where host and device are one; on a GPU it does not either (tests/gpu)."""
    learnt = []
    for placement in ("together", "hybrid"):
        found = run(
            tmp_path / placement, recipe(steps=2, evaluate_every=9, evaluate_prompts=1, placement=placement)
        )
        found.train(nothing, lambda: False)
        learnt.append(found.learnt()["head.proj.weight"])
    assert torch.equal(*learnt)


def test_an_asynchronous_run_is_one_version_behind_but_after_what_it_goes_on_from(tmp_path: Path) -> None:
    asked = recipe(steps=5, asynchronous=True, checkpoint_every=3, evaluate_every=9, evaluate_prompts=1)
    said = list[PolicyReport]()
    again = list[PolicyReport]()
    whole, first, second = (run(tmp_path / name, asked) for name in ("whole", "parts", "parts"))
    whole.train(said.append, lambda: False)
    assert [report.numbers["behind"] for report in said] == [0, 1, 1, 0, 1], (
        "nothing is made ahead across a checkpoint"
    )
    first.train(again.append, lambda: len(again) == 3)
    second.train(again.append, lambda: False)
    assert torch.equal(whole.learnt()["head.proj.weight"], second.learnt()["head.proj.weight"])


def test_no_weights_are_taken_over_while_a_batch_is_under_way(tmp_path: Path) -> None:
    found = run(tmp_path, recipe(asynchronous=True))
    found.batches.begin(0)
    with pytest.raises(AssertionError, match="under way"):
        found.batches.load_weights(found.actor, 1)
    assert found.batches.collect().made.version == 0


WRONG = [
    (dict(rewards=()), "give a reward"),
    (dict(prompts=()), "give prompts"),
    (dict(group=1), "group = 2 or more"),
    (dict(ema=1.0), "ema must be from 0 to less than 1"),
    (dict(fork=(2, 1)), "fork is"),
    (dict(switched=0.5), "switched"),
    (dict(rewards=(RewardPlan(kind="attributes"),)), "33 frames"),
    (dict(rewards=(RewardPlan(kind="switch"),)), "switched = 0.5"),
    (dict(rewards=(RewardPlan(kind="attributes"),), chunks=3, judge="bundled"), "held back"),
    (
        dict(rewards=(RewardPlan(kind="attributes"),), chunks=3, judge="none.safetensors"),
        "millstream train judge makes one",
    ),
    (dict(kl_target=9.0, kl_bound=1.0), "bound"),
    (dict(eta=0.0), "nothing to learn from"),
    (dict(steps=0), "steps must be above 0"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_recipe_that_cannot_be_is_refused_in_one_line(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        recipe(**changes).check(SPEC, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("reward-*.toml")), ids=lambda path: path.stem)
def test_the_recipes_that_ship_can_be(path: Path, tmp_path: Path) -> None:
    found = read_policy_recipe(path)
    for name in ("judge", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "judge.safetensors").write_bytes(name.encode())
    found.check(find_model(found.model), tmp_path)


@pytest.mark.parametrize(
    ("was", "wrong", "said"),
    [
        ('algorithm = "grpo"', 'algorithm = "sarsa"', "known: best-of-n, gradient, grpo, matching, ppo"),
        ('kind = "brightness"', 'kind = "beauty"', "brightness, "),
        ("steps = 12", 'steps = 12\nexport = "gguf"', "known: .*millstream"),
    ],
)
def test_a_value_that_is_not_one_of_several_is_told_which_are(
    was: str, wrong: str, said: str, tmp_path: Path
) -> None:
    text = (RECIPES / "reward-brook-mini.toml").read_text()
    assert was in text
    (tmp_path / "r.toml").write_text(text.replace(was, wrong))
    with pytest.raises(ConfigError, match=said):
        read_policy_recipe(tmp_path / "r.toml")


@pytest.mark.parametrize("text", ["model = 3", 'model = "brook"\nsteps = 1', "[["])
def test_what_is_no_recipe_is_said_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(text)
    for path in (tmp_path / "r.toml", tmp_path / "none.toml"):
        with pytest.raises(ConfigError) as caught:
            read_policy_recipe(path)
        assert "\n" not in str(caught.value)


def test_what_a_step_learns_from_depends_on_the_seed_and_the_step_alone() -> None:
    asked = read_policy_recipe(RECIPES / "reward-brook.toml")
    assert step_plan(asked, 3) == step_plan(asked, 3)
    assert len({step_plan(asked, step).prompts for step in range(4)}) == 4
    assert {step_plan(asked, step).fork_at for step in range(40)} == set(
        range(asked.fork[0], asked.fork[1] + 1)
    )
    assert not set(evaluated_prompts(asked)) & {
        prompt for step in range(20) for prompt in step_plan(asked, step).prompts
    }
