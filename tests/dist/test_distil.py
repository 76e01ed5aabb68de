"""Students that learn from others on ranks: the same losses and weights, of student and critic, as one
process."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from millstream.commands.train.role_memory import role_memory
from millstream.models.registry import load_dit
from millstream.train.distil.matching import MatchingDistillation
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.recipe import LoRAPlan
from millstream.train.finetune.roles import OtherRole, StudentRole
from millstream.train.finetune.run import CURVE, TuningRun
from millstream.train.loop import StepReport
from tests.dist.ranks import run_on_kept_ranks
from tests.dist.test_tuning import finished
from tests.dist.test_tuning_memory import bytes_of
from tests.unit.train.distil.distilling import METHODS, states_of
from tests.unit.train.finetune.datasets import SPEC, recipe, small_dataset

CPU = torch.device("cpu")


class Distilled(NamedTuple):
    losses: list[dict[str, float]]
    learnt: dict[str, Tensor]
    """Weights of the student and the critic, and what else outlives a step."""


def distil(rank: int, folder: Path, changed: dict[str, Any]) -> Distilled:
    run = TuningRun(recipe(**changed), SPEC, ClipSet(folder / "clips"), folder, CPU)
    said = list[StepReport]()
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
    first, *_, last = run_on_kept_ranks(distil, ranks, folder / name, changed, timeout_s=120.0)
    if changed.get("placement") != "apart":
        return first
    return first._replace(
        learnt=first.learnt | {f"critic.{key}": value for key, value in last.learnt.items()}
    )


SHORT = {"steps": 4, "checkpoint_every": 4}


@functools.cache
def alone(folder: Path, method: str) -> Distilled:
    return distilled(folder, f"{method} alone", METHODS[method] | SHORT)


SIGNS = 1e-4
"""Of a weight's norm: AdamW's first steps go by signs, and those of gradients near zero turn with the order
of sums."""


def assert_same(found: Distilled, wanted: Distilled, within: float = 1e-5) -> None:
    assert len(found.losses) == len(wanted.losses)
    for one, other in zip(found.losses, wanted.losses, strict=True):
        assert one == pytest.approx(other, rel=within)
    assert found.learnt.keys() == wanted.learnt.keys()
    for key, value in wanted.learnt.items():
        off = (found.learnt[key].float() - value.float()).norm()
        assert off <= max(within, SIGNS) * value.float().norm() + 1e-6, key


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
    "DDP": {"parallel": {"dp": 2, "data": "ddp"}},
    "HSDP": {"parallel": {"dp": 4, "data": "hsdp", "shards": 2}},
    "tensor": {"parallel": {"tp": 2}},
    "context": {"parallel": {"cp": 2}},
}


@pytest.mark.parametrize(
    ("method", "plan"),
    [
        *((method, plan) for method in METHODS for plan in ("replicas", "FSDP2")),
        *(("self-forcing", plan) for plan in ("each its own", "HSDP", "tensor", "context")),
        ("dmd", "DDP"),
        *(("ode", plan) for plan in ("tensor", "context")),
    ],
)
def test_however_roles_are_shared_out_the_same_is_learnt(folder: Path, method: str, plan: str) -> None:
    changed = METHODS[method] | SHORT | PLANS[plan]
    within = (
        1e-4 if plan in ("tensor", "context") else 1e-5
    )  # sums in another order, and AdamW's first steps ask for signs
    assert_same(distilled(folder, f"{method} {plan}", changed), alone(folder, method), within)


def test_adapters_of_student_and_critic_learn_the_same_on_ranks(folder: Path) -> None:
    changed = METHODS["self-forcing"] | SHORT | {"lora": LoRAPlan(rank=2)}
    one = distilled(folder, "lora alone", changed)
    assert_same(distilled(folder, "lora", changed | {"parallel": {"dp": 2, "data": "fsdp"}}), one)


def test_a_run_of_three_roles_goes_on_with_other_ranks(folder: Path) -> None:
    changed = METHODS["self-forcing"]
    for steps, plan in ((2, "replicas"), (4, "FSDP2"), (6, "one")):
        found = distilled(folder, "parts", changed | PLANS.get(plan, {}) | {"steps": steps, "cosine_over": 6})
    whole = distilled(folder, "whole", changed | {"steps": 6, "cosine_over": 6})
    assert_same(found, whole._replace(losses=whole.losses[-2:]))


APART = {
    "one and one": {"dp": 1},
    "one, and two that share the judges": {"dp": 2, "data": "fsdp"},
}


@pytest.mark.parametrize("judges", APART)
@pytest.mark.parametrize("method", ["dmd", "self-forcing"])
def test_judges_on_ranks_of_their_own_say_the_same(folder: Path, method: str, judges: str) -> None:
    changed = METHODS[method] | SHORT
    role = OtherRole(parallel=APART[judges])
    teacher = OtherRole(weights=changed["teacher"].weights, parallel=APART[judges])
    apart = changed | {"placement": "apart", "teacher": teacher, "critic": role}
    assert_same(distilled(folder, f"{method} apart, {judges}", apart), alone(folder, method))


def test_students_and_judges_that_share_rows_otherwise_go_on_together(folder: Path) -> None:
    judges = {"parallel": {"dp": 1}}
    changed = METHODS["self-forcing"] | {
        "cosine_over": 6,
        "placement": "apart",
        "student": StudentRole(parallel={"dp": 2}),
    }
    changed |= {"teacher": OtherRole(weights=("random:4",), **judges), "critic": OtherRole(**judges)}
    whole = distilled(folder, "apart, whole", changed | {"steps": 6})
    distilled(folder, "apart, parts", changed | {"steps": 2})
    found = distilled(folder, "apart, parts", changed | {"steps": 6})
    assert found.learnt.keys() == whole.learnt.keys()
    assert all(torch.equal(value, found.learnt[key]) for key, value in whole.learnt.items())


def held(rank: int, folder: Path, changed: dict[str, Any]) -> dict[str, int]:
    """Bytes of weights and what optimisers keep after a step, by role."""
    made: Any = TuningRun(recipe(**changed), SPEC, ClipSet(folder / "clips"), folder, CPU)
    made.train(lambda _: None, lambda: False)
    method = made._distillation
    assert isinstance(method, MatchingDistillation)
    judges: Any = method._judges
    learners = {"student": made.learner, "critic": judges._critic}
    found = {
        role: bytes_of(list(learner._dit.parameters()))
        + bytes_of(
            [value for state in learner.optimiser.state.values() for value in state.values() if value.ndim]
        )
        for role, learner in learners.items()
    }
    painting: Any = method._painting
    found["teacher"] = bytes_of(list(judges._teacher._model.parameters()))
    return found | {"painter": bytes_of(list(painting._painter.dit.parameters()))}


@pytest.mark.parametrize("data", ["replicas", "fsdp"])
def test_each_role_holds_what_a_dry_run_says(folder: Path, data: str) -> None:
    changed = METHODS["self-forcing"] | {"steps": 1, "ema": 0.9, "parallel": {"dp": 2, "data": data}}
    (folder / data).mkdir()
    (folder / data / "clips").symlink_to(folder / "clips")
    found = run_on_kept_ranks(held, 2, folder / data, changed)[0]
    for role, state in role_memory(recipe(**changed), SPEC):
        assert found[role] == pytest.approx(state.weights + state.optimizer + state.average, rel=0.05), role


RECIPE = """
model = "wan-tiny"
method = "dmd"
weights = ["random:3"]
data = "clips"
steps = 2
batch = 4
lr = 1e-2
frames_per_chunk = 2
window = 4
placement = "apart"
[teacher]
weights = ["random:4"]
[student.parallel]
dp = 2
"""


def test_the_command_leaves_the_student_of_a_run_whose_judges_are_apart(folder: Path) -> None:
    path = folder / "judged.toml"
    path.write_text(RECIPE)
    said = finished(path, 3)
    assert str(path.with_suffix("") / "dit") in said.replace("\n", "")
    learnt = load_dit(SPEC, [str(path.with_suffix("") / "dit")], device=CPU, dtype=torch.float32)
    begun = load_dit(SPEC, ["random:3"], device=CPU, dtype=torch.float32)
    assert any(
        (one - other).abs().max() > 1e-3
        for one, other in zip(learnt.parameters(), begun.parameters(), strict=True)
    )
    lines = [json.loads(line) for line in (path.with_suffix("") / CURVE).read_text().splitlines()]
    assert {"match", "norm", "critic", "critic norm"} <= lines[-1].keys()
