"""Every method on a dataset of toy size, and all that a run of one has learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from millstream.train.distil.training_rows import RoleStates
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.roles import OtherRole
from millstream.train.finetune.run import TuningRun
from tests.unit.train.finetune.datasets import SPEC, recipe, small_dataset

TEACHER = {"teacher": OtherRole(weights=("random:4",))}
METHODS: dict[str, dict[str, Any]] = {
    "ode": {"method": "ode", "distil": {"teacher_steps": 3}, **TEACHER},
    "discrete consistency": {"method": "consistency", "distil": {"teacher_steps": 4}, **TEACHER},
    "continuous consistency": {
        "method": "consistency",
        "distil": {"consistency": "continuous", "tangent_warm_up": 2},
        **TEACHER,
    },
    "dmd": {"method": "dmd", "forcing": "diffusion", **TEACHER},
    "self-forcing": {
        "method": "self-forcing",
        "distil": {"longest": 3, "begun": 0.3, "switched": 0.3, "streams": 8},
        **TEACHER,
    },
}


def run_of(folder: Path, name: str = "run", **changed: Any) -> TuningRun:
    clips = ClipSet(small_dataset(folder / "clips"))
    (folder / name).mkdir(exist_ok=True)
    return TuningRun(recipe(**changed), SPEC, clips, folder / name, torch.device("cpu"))


def states_of(run: TuningRun) -> dict[str, Tensor]:
    """Of everybody, by name; on every rank."""
    assert run._distillation is not None
    states = RoleStates(run.learner, run._distillation).states()
    return {f"{state.name}:{kind}": tensor for state in states for kind, tensor in state.tensors.items()}
