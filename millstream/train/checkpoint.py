"""Everything a stage needs to go on as if it had never stopped.

Randomness and the position in the data are functions of the run's seed and the step, so they need no saving.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from millstream.core.errors import NotKept, WeightsError
from millstream.core.files import Staging
from millstream.train.parallel.checkpoint import GO_ON


def save_checkpoint(path: Path, step: int, state: Mapping[str, Any]) -> None:
    """Write the state after so many steps. It appears by rename: a crash leaves the last one."""
    try:
        with Staging(path.parent) as staging:
            torch.save({"step": step, **state}, staging.path(path.name))
    except (OSError, RuntimeError) as error:  # of a full disk torch says that a position is unexpected
        raise NotKept(f"cannot write {path}: {error}; {GO_ON}") from None


def read_checkpoint(path: Path) -> dict[str, Any]:
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise WeightsError(
            f"{path} cannot be read as a checkpoint: {type(error).__name__}; remove it to start over"
        ) from None
