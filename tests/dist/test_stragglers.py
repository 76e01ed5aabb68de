"""A rank that is slow by itself is named, though all ranks' steps take as long."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from millstream.train.finetune import stragglers
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.run import CURVE, TuningRun
from millstream.train.parallel.learner import PipelineLearner
from tests.dist.ranks import run_ranks
from tests.unit.train.finetune.datasets import SPEC, recipe, small_dataset

SLOW = 1


def tune(rank: int, folder: Path, parallel: dict[str, Any], slow: int) -> dict[int, float]:
    stragglers.EVERY = 2
    made = TuningRun(
        recipe(steps=8, parallel=parallel), SPEC, ClipSet(folder / "clips"), folder, torch.device("cpu")
    )
    if rank == slow:
        learner: Any = made.learner
        here = learner._pipeline.module if isinstance(learner, PipelineLearner) else learner._dit.blocks
        for module in here.modules():
            if isinstance(module, torch.nn.Linear):
                module.forward = slowed(module.forward)  # type: ignore[method-assign]
    made.train(lambda _: None, lambda: False)
    return made.stragglers.slow


def slowed(forward: Any) -> Any:
    def called(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        found: torch.Tensor = forward(x)
        return found

    return called


@pytest.mark.parametrize(
    "parallel",
    [
        {"dp": 2},
        {"dp": 2, "data": "zero3"},
        {"dp": 2, "data": "fsdp"},
        {"tp": 2},
        {"pp": 2, "micro_batches": 2},
    ],
    ids=["replicas", "ZeRO 3", "FSDP2", "tensor", "pipeline"],
)
def test_a_slow_rank_is_named(tmp_path: Path, parallel: dict[str, Any]) -> None:
    small_dataset(tmp_path / "clips")
    for found in run_ranks(tune, 2, tmp_path, parallel, SLOW):
        assert set(found) == {SLOW}, "on every rank"
        assert found[SLOW] > 1.5
    last = json.loads((tmp_path / CURVE).read_text().splitlines()[-1])
    assert set(last["slow_ranks"]) == {str(SLOW)}
