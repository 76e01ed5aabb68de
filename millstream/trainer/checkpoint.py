"""Everything a stage needs to go on as if it had never stopped.

Randomness and the position in the data are functions of the run's seed and the step, so they need no saving.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from millstream.core.errors import NotKept, WeightsError
from millstream.core.files import Staging
from millstream.parallel.training.checkpoint import GO_ON
from millstream.trainer.optimise import Average, Optimisers

Carried = Mapping[str, Mapping[str, Tensor]]
"""By turn and name: tensors of a method's own that outlive a step."""


def save_checkpoint(
    path: Path,
    step: int,
    modules: Mapping[str, nn.Module],
    optimisers: Mapping[str, Optimisers],
    average: Average,
    carried: Carried,
) -> None:
    """Appears by rename: a crash leaves the last one."""
    state = {
        "step": step,
        "weights": {name: module.state_dict() for name, module in modules.items()},
        "average": average.module.state_dict(),
        "optimisers": {name: each.state_dict() for name, each in optimisers.items()},
        "carried": {name: dict(tensors) for name, tensors in carried.items()},
    }
    try:
        with Staging(path.parent) as staging:
            torch.save(state, staging.path(path.name))
    except (OSError, RuntimeError) as error:  # of a full disk torch says that a position is unexpected
        raise NotKept(f"cannot write {path}: {error}; {GO_ON}") from None


def load_checkpoint(
    path: Path, modules: Mapping[str, nn.Module], optimisers: Mapping[str, Optimisers], average: Average, carried: Carried
) -> int:
    """Returns the number of steps done."""
    state = read_checkpoint(path)
    for name, module in modules.items():
        module.load_state_dict(state["weights"][name])
        optimisers[name].load_state_dict(state["optimisers"][name])
    average.module.load_state_dict(state["average"])
    for name, tensors in carried.items():
        for part, tensor in tensors.items():
            tensor.copy_(state["carried"][name][part])
    return int(state["step"])


def read_checkpoint(path: Path) -> dict[str, Any]:
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise WeightsError(f"{path} cannot be read as a checkpoint: {type(error).__name__}; remove it to start over") from None
