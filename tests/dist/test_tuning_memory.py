"""What the planner says a rank holds, against the bytes that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from millstream.parallel.training.learner import ZeroLearner
from millstream.parallel.training.plan import Data
from millstream.planner.training import learner_state
from millstream.trainer.tuning.dataset import ClipSet
from millstream.trainer.tuning.recipe import LoRAPlan
from millstream.trainer.tuning.run import TuningRun
from tests.dist.ranks import run_ranks
from tests.unit.trainer.tuning.datasets import SPEC, recipe, small_dataset

RANKS = 2


def bytes_of(tensors: list[Tensor]) -> int:
    """Of what they are kept in, each once."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}
    return sum(storages.values())


def held(rank: int, folder: Path, changed: dict[str, Any]) -> tuple[int, int, int, int]:
    """Parameters that learn and do not, and bytes of the weights and of what the optimiser keeps after a step."""
    made = TuningRun(recipe(steps=1, ema=0.9, **changed), SPEC, ClipSet(folder / "clips"), folder, torch.device("cpu"))
    learner = made.learner
    dit = learner._dit  # type: ignore[attr-defined]
    frozen = sum(parameter.numel() for parameter in dit.parameters() if not parameter.requires_grad)
    made.train(lambda _: None, lambda: False)
    weights = list(dit.parameters())
    if isinstance(learner, ZeroLearner):
        weights += [unit.mine for unit in learner._zero.units]
    kept = [value for state in learner.optimiser.state.values() for value in state.values() if value.ndim]
    return made.learning, frozen, bytes_of(weights), bytes_of(kept)


@pytest.mark.parametrize("lora", [None, LoRAPlan(rank=8)], ids=["whole", "lora"])
@pytest.mark.parametrize("data", ["replicas", "zero1", "zero2", "zero3", "fsdp"])
def test_a_rank_holds_what_the_planner_says(tmp_path: Path, data: Data, lora: LoRAPlan | None) -> None:
    small_dataset(tmp_path / "clips")
    changed = {"lora": lora, "parallel": {"dp": RANKS, "data": data}}
    learning, frozen, weights, kept = run_ranks(held, RANKS, tmp_path, changed)[0]
    said = learner_state(learning, frozen, data=data, ranks=RANKS, ema=True)
    assert weights == pytest.approx(said.weights, rel=0.05)
    assert kept == pytest.approx(said.optimizer + said.average, rel=0.05)
