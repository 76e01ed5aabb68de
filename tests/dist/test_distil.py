"""Students that learn from others on ranks: the same losses and weights, of student and critic, as one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from millstream.trainer.loop import StepReport
from millstream.trainer.tuning.dataset import ClipSet
from millstream.trainer.tuning.recipe import LoRAPlan
from millstream.trainer.tuning.roles import OtherRole, StudentRole
from millstream.trainer.tuning.run import TuningRun
from tests.dist.ranks import run_ranks
from tests.unit.trainer.distil.distilling import METHODS, states_of
from tests.unit.trainer.tuning.datasets import SPEC, recipe, small_dataset

CPU = torch.device("cpu")


class Distilled(NamedTuple):
    losses: list[dict[str, float]]
    learnt: dict[str, Tensor]
    """Weights of the student and the critic, and what else outlives a step."""


def distil(rank: int, folder: Path, changed: dict[str, Any]) -> Distilled:
    run, said = TuningRun(recipe(**changed), SPEC, ClipSet(folder / "clips"), folder, CPU), list[StepReport]()
    run.train(said.append, lambda: False)
    return Distilled([report.losses for report in said], states_of(run))


def distilled(folder: Path, name: str, changed: dict[str, Any]) -> Distilled:
    """On as many ranks as it takes."""
    (folder / name).mkdir(exist_ok=True)
    if not (folder / name / "clips").exists():
        (folder / name / "clips").symlink_to(folder / "clips")
    ranks = recipe(**changed).world_size
    if ranks == 1:
        return distil(0, folder / name, changed)
    found: Distilled = run_ranks(distil, ranks, folder / name, changed, timeout_s=120.0)[0]
    return found


def assert_same(found: Distilled, wanted: Distilled) -> None:
    assert len(found.losses) == len(wanted.losses)
    for one, other in zip(found.losses, wanted.losses, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert found.learnt.keys() == wanted.learnt.keys()
    for key, value in wanted.learnt.items():
        assert (found.learnt[key].float() - value.float()).norm() <= 1e-5 * value.float().norm() + 1e-6, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("distilling")
    small_dataset(found / "clips")
    return found


PLANS: dict[str, dict[str, Any]] = {
    "replicas": {"parallel": {"dp": 2}},
    "FSDP2": {"parallel": {"dp": 2, "data": "fsdp"}},
    "each its own": {
        "student": StudentRole(parallel={"dp": 2, "data": "zero2"}),
        "critic": OtherRole(parallel={"dp": 2, "data": "zero3"}),
        "parallel": {"dp": 2, "data": "fsdp"},
    },
    "tensor": {"parallel": {"tp": 2}},
    "context": {"parallel": {"cp": 2}},
}


@pytest.mark.parametrize(
    ("method", "plan"),
    [
        *((method, plan) for method in METHODS for plan in ("replicas", "FSDP2")),
        *(("self-forcing", plan) for plan in ("each its own", "tensor", "context")),
        *(("ode", plan) for plan in ("tensor", "context")),
    ],
)
def test_however_roles_are_shared_out_the_same_is_learnt(folder: Path, method: str, plan: str) -> None:
    changed = METHODS[method] | {"steps": 4}
    roles = PLANS[plan]
    alone = distilled(folder, f"{method} alone beside {plan}", changed)
    merged = changed | {name: value for name, value in roles.items() if name != "teacher"}
    assert_same(distilled(folder, f"{method} {plan}", merged), alone)


def test_adapters_of_student_and_critic_learn_the_same_on_ranks(folder: Path) -> None:
    changed = METHODS["self-forcing"] | {"steps": 4, "lora": LoRAPlan(rank=2)}
    alone = distilled(folder, "lora alone", changed)
    assert_same(distilled(folder, "lora", changed | {"parallel": {"dp": 2, "data": "fsdp"}}), alone)


def test_a_run_of_three_roles_goes_on_with_other_ranks(folder: Path) -> None:
    changed = METHODS["self-forcing"]
    whole = distilled(folder, "whole", changed | {"steps": 6})
    for steps, plan in ((2, "replicas"), (4, "FSDP2"), (6, "one")):
        found = distilled(folder, "parts", changed | PLANS.get(plan, {}) | {"steps": steps, "cosine_over": 6})
    again = distilled(folder, "whole again", changed | {"steps": 6, "cosine_over": 6})
    assert_same(found._replace(losses=whole.losses[-1:]), again._replace(losses=whole.losses[-1:]))
