"""Tuning by reward on a GPU: densities in training are those of the rollout, and a run takes steps and leaves
weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from millstream.core.presets import find_model
from millstream.models.fast.stack import FastStack
from millstream.train.reward.rewards import RewardPlan
from millstream.train.rl.prompting import step_plan
from millstream.train.rl.run import PolicyReport, PolicyRun
from tests.unit.train.rl.test_policy_run import recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

GPU = torch.device("cuda")
SPEC = find_model("wan-mini")


def run(folder: Path, **changes: object) -> PolicyRun:
    asked = recipe(model=SPEC.name, height=64, width=64, fork=(1, 2), minibatches=1, **changes)
    return PolicyRun(asked, SPEC, folder, folder, GPU)


def test_densities_in_training_are_those_of_the_rollout(tmp_path: Path) -> None:
    found = run(tmp_path)
    made = found.engine.roll(replace(step_plan(found.recipe, 0), fork_at=2))
    rows = torch.arange(len(made), device=GPU)
    with torch.no_grad():
        again = found.learner.log_densities(made, found.learner.steps(found.actor, made, rows), rows)
    torch.testing.assert_close(again, made.log_density_BLK, atol=0.02, rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "best-of-n"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_takes_steps(algorithm: str, precision: str, tmp_path: Path) -> None:
    found = run(tmp_path, algorithm=algorithm, precision=precision)
    said = list[PolicyReport]()
    assert found.train(said.append, lambda: False)
    assert isinstance(found.engine.dit.blocks, FastStack) is (precision == "bf16")
    assert [report.numbers["skipped"] for report in said] == [0, 0, 0]
    assert said[0].numbers["ratio_off"] < 1e-3
    assert all(weight.isfinite().all() for weight in found.learnt().values())


def test_gradients_of_pictures_reach_the_weights(tmp_path: Path) -> None:
    rewards = (RewardPlan(kind="attributes", names=("setting",), views=2),)
    found = run(
        tmp_path, algorithm="gradient", precision="bf16", chunks=3, prompts=("the sea",), rewards=rewards
    )
    said = list[PolicyReport]()
    before = found.actor.head.proj.weight.detach().clone()
    assert found.train(said.append, lambda: False)
    assert all(report.numbers["skipped"] == 0 and report.numbers["norm"] > 0 for report in said)
    assert not torch.equal(before, found.actor.head.proj.weight)


def test_what_learns_lies_in_host_memory_while_streams_are_made(tmp_path: Path) -> None:
    found = run(tmp_path, placement="hybrid")
    assert found.train(lambda said: None, lambda: False)
    assert all(weight.device.type == "cpu" for weight in found.actor.parameters())
    assert next(found.engine.dit.parameters()).is_cuda


def test_rollouts_beside_learning_are_one_version_behind(tmp_path: Path) -> None:
    found = run(tmp_path, asynchronous=True, evaluate_every=9, checkpoint_every=9)
    said = list[PolicyReport]()
    assert found.train(said.append, lambda: False)
    assert [report.numbers["behind"] for report in said] == [0, 1, 1]
    assert all(weight.isfinite().all() for weight in found.learnt().values())
