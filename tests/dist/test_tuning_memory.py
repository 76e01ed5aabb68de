"""What the planner says a rank holds, against the bytes that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from millstream.commands.train.role_memory import role_memory
from millstream.planner.training import learner_state, optimiser_bytes
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.recipe import LoRAPlan
from millstream.train.finetune.run import TuningRun
from millstream.train.parallel.learner import Learner, PipelineLearner, ZeroLearner
from millstream.train.parallel.optimisers.masters import Masters
from millstream.train.parallel.plan import Data
from tests.dist.ranks import run_on_kept_ranks
from tests.unit.train.finetune.datasets import SPEC, recipe, small_dataset

RANKS = 2


def bytes_of(tensors: list[Tensor]) -> int:
    """Of what they are kept in, each once."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}
    return sum(storages.values())


class Held(NamedTuple):
    learning: int
    frozen: int
    weights: int
    """Bytes, of a rank's share; so are the next."""
    kept: int
    """By the optimiser, after a step."""
    masters: int
    """Weights in host memory."""
    gradients: int
    """Whose squares are summed up."""


def held(rank: int, folder: Path, changed: dict[str, Any]) -> Held:
    made = TuningRun(
        recipe(steps=1, ema=0.9, **changed), SPEC, ClipSet(folder / "clips"), folder, torch.device("cpu")
    )
    learner = made.learner
    whole: torch.nn.Module = (
        learner._pipeline.module if isinstance(learner, PipelineLearner) else learner._dit  # type: ignore[attr-defined]
    )
    frozen = sum(parameter.numel() for parameter in whole.parameters() if not parameter.requires_grad)
    gradients = weighed_gradients(learner)
    made.train(lambda _: None, lambda: False)
    weights = list(whole.parameters())
    if isinstance(learner, ZeroLearner):
        weights += [unit.mine for unit in learner._zero.units]
    masters = list(learner.optimiser.masters.values()) if isinstance(learner.optimiser, Masters) else []
    kept = [value for state in learner.optimiser.state.values() for value in state.values() if value.ndim]
    return Held(
        made.learning,
        frozen,
        bytes_of(weights),
        bytes_of(kept),
        bytes_of(list[Tensor](masters)),
        gradients[0],
    )


def weighed_gradients(learner: Learner) -> list[int]:
    """Filled in when the backward pass is done."""
    found = list[int]()
    squares = learner._grad_norm_squared

    def weigh() -> Tensor:
        followed = [parameter for group in learner.optimiser.param_groups for parameter in group["params"]]
        found.append(bytes_of([each.grad for each in followed if each.grad is not None]))
        return squares()

    learner._grad_norm_squared = weigh  # type: ignore[method-assign]
    return found


PLANS: dict[str, dict[str, Any]] = {
    "ddp": {"dp": 2, "data": "ddp"},
    "hsdp": {"dp": 2, "data": "hsdp", "shards": 2},
    "context": {"cp": 2, "data": "fsdp"},
    "tensor": {"tp": 2},
    "pipeline": {"pp": 2, "micro_batches": 2},
}


@pytest.mark.parametrize(
    ("plan", "lora"),
    [*((plan, None) for plan in PLANS), ("tensor", LoRAPlan(rank=8))],
    ids=[*PLANS, "tensor lora"],
)
def test_a_dry_run_says_what_a_rank_of_every_plan_holds(
    tmp_path: Path, plan: str, lora: LoRAPlan | None
) -> None:
    small_dataset(tmp_path / "clips")
    changed = {"parallel": PLANS[plan], "lora": lora}
    found: Held = run_on_kept_ranks(held, RANKS, tmp_path, changed)[
        0
    ]  # the first rank of a pipeline is the fullest: it embeds
    (said,) = role_memory(recipe(steps=1, ema=0.9, **changed), SPEC)
    assert found.weights == pytest.approx(said.state.weights, rel=0.05)
    assert found.gradients == pytest.approx(said.state.gradients, rel=0.05)
    assert found.kept == pytest.approx(said.state.optimizer + said.state.average, rel=0.05)


@pytest.mark.parametrize("lora", [None, LoRAPlan(rank=8)], ids=["whole", "lora"])
@pytest.mark.parametrize("data", ["replicas", "zero1", "zero2", "zero3", "fsdp"])
def test_a_rank_holds_what_the_planner_says(tmp_path: Path, data: Data, lora: LoRAPlan | None) -> None:
    small_dataset(tmp_path / "clips")
    changed = {"lora": lora, "parallel": {"dp": RANKS, "data": data}}
    found: Held = run_on_kept_ranks(held, RANKS, tmp_path, changed)[0]
    said = learner_state(found.learning, found.frozen, data=data, ranks=RANKS, ema=True)
    assert found.weights == pytest.approx(said.weights, rel=0.05)
    assert found.kept == pytest.approx(said.optimizer + said.average, rel=0.05)
    if data != "zero1":  # which has them whole until they are summed
        assert found.gradients == pytest.approx(said.gradients, rel=0.05)


@pytest.mark.parametrize(
    ("data", "optimiser", "bits"),
    [
        ("replicas", "adamw", 8), ("zero2", "adamw", 8), ("fsdp", "adamw", 8), ("zero3", "muon", 32), ("fsdp", "muon", 32),
        ("zero2", "adafactor", 32), ("fsdp", "adafactor", 32),
    ],
)  # fmt: skip
def test_an_optimiser_keeps_what_the_planner_says(
    tmp_path: Path, data: Data, optimiser: str, bits: int
) -> None:
    small_dataset(tmp_path / "clips")
    changed = {"optimiser": optimiser, "state_bits": bits, "parallel": {"dp": RANKS, "data": data}}
    found: Held = run_on_kept_ranks(held, RANKS, tmp_path, changed)[0]
    kept_bytes = optimiser_bytes(SPEC.dit, optimiser, bits)
    whole = optimiser == "adafactor"
    said = learner_state(
        found.learning, 0, data=data, ranks=RANKS, ema=True, kept_bytes=kept_bytes, is_kept_whole=whole
    )
    assert found.kept == pytest.approx(said.optimizer + said.average, rel=0.05)


@pytest.mark.parametrize(("data", "bits"), [("replicas", 32), ("zero2", 8), ("zero3", 32), ("fsdp", 32)])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_what_is_offloaded_is_where_the_planner_says(
    tmp_path: Path, data: Data, bits: int, precision: str
) -> None:
    small_dataset(tmp_path / "clips")
    asked = {"offload": "optimiser", "state_bits": bits, "precision": precision}
    found: Held = run_on_kept_ranks(
        held, RANKS, tmp_path, {**asked, "parallel": {"dp": RANKS, "data": data}}
    )[0]
    said = learner_state(
        found.learning,
        0,
        data=data,
        ranks=RANKS,
        ema=True,
        kept_bytes=optimiser_bytes(SPEC.dit, "adamw", bits),
        learning_bytes=2 if precision == "bf16" and data != "fsdp" else 4,
        offload=True,
    )
    if data == "fsdp":  # gradients are in host memory too while there are any
        assert found.weights + found.kept + 4 * found.learning / RANKS == pytest.approx(said.host, rel=0.05)
    else:
        assert found.weights == pytest.approx(said.weights, rel=0.05)
        assert found.masters + found.kept == pytest.approx(said.host, rel=0.05)
