"""Each optimiser does on ranks what it does in one process, however parameters are held, and goes on from
checkpoints."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from millstream.train.parallel.optimisers.choice import OptimiserChoice, OptimiserName
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.task import StepOptions
from tests.dist.ranks import run_on_kept_ranks
from tests.soak.train_equality import STRATEGIES, Trained, difference, train

STEPS = 3
NAMES: list[OptimiserName] = ["adafactor", "muon"]
PLANS = {
    "DDP": ParallelPlan(dp=2, data="ddp"),
    "ZeRO 1": ParallelPlan(dp=2, data="zero1"),
    "ZeRO 2": ParallelPlan(dp=2, data="zero2"),
    "ZeRO 3": ParallelPlan(dp=2, data="zero3"),
    "FSDP2": ParallelPlan(dp=2, data="fsdp"),
    "HSDP": STRATEGIES["HSDP"],
    "tensor": ParallelPlan(tp=2),
    "FSDP2 x tensor": STRATEGIES["2D, FSDP2 x tensor"],
    "context": ParallelPlan(cp=2),
    "pipeline": ParallelPlan(pp=2, schedule="1f1b", micro_batches=4),
}


def options(name: OptimiserName) -> StepOptions:
    return StepOptions(optimiser=OptimiserChoice(name=name, lr=1e-2), grad_clip=0.5, ema=0.9)


@functools.cache
def alone(name: OptimiserName) -> Trained:
    return train(0, "two-blocks", ParallelPlan(), STEPS, None, options(name))


def by_each(rank: int, plan: ParallelPlan) -> dict[OptimiserName, Trained]:
    return {name: train(rank, "two-blocks", plan, STEPS, None, options(name)) for name in NAMES}


@pytest.mark.parametrize("plan", PLANS)
def test_losses_and_weights_are_those_of_one_process(plan: str) -> None:
    for found in run_on_kept_ranks(by_each, PLANS[plan].world_size, PLANS[plan]):
        for name in NAMES:
            assert difference(found[name], alone(name)) < (1e-5 if name == "adafactor" else 1e-3), name
    assert all(alone(name).losses[-1] < alone(name).losses[0] for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_with_other_ways_of_sharing(name: OptimiserName, tmp_path: Path) -> None:
    whole = train(0, "two-blocks", ParallelPlan(), 8, tmp_path / "whole", options(name))
    losses = list[float]()
    norms = list[float]()
    for steps, plan in enumerate(("ZeRO 3", "tensor", "FSDP2", "ZeRO 1"), start=1):
        found, *_ = run_on_kept_ranks(
            train, 2, "two-blocks", PLANS[plan], 2 * steps, tmp_path / "shared", options(name)
        )
        losses += found.losses
        norms += found.norms
    assert difference(Trained(losses, found.weights, norms), whole) < (1e-5 if name == "adafactor" else 2e-3)


@pytest.mark.parametrize(
    ("plan", "changed", "most"),
    [
        ("ZeRO 3", {"offload": True}, 1e-5),
        ("FSDP2", {"offload": True}, 1e-5),
        ("tensor", {"offload": True}, 1e-5),
        ("pipeline", {"offload": True}, 1e-5),
        ("ZeRO 2", {"state_bits": 8}, 0.02),  # of a weight's norm; blocks begin elsewhere than in one process
        ("FSDP2", {"state_bits": 8, "offload": True}, 0.02),
    ],
)
def test_fewer_bits_and_host_memory_change_little_on_ranks(
    plan: str, changed: dict[str, Any], most: float
) -> None:
    asked = StepOptions(optimiser=OptimiserChoice(lr=1e-2, **changed), grad_clip=0.5, ema=0.9)
    for found in run_on_kept_ranks(
        train, PLANS[plan].world_size, "two-blocks", PLANS[plan], STEPS, None, asked
    ):
        assert difference(found, alone("adamw")) < most
