"""Default folders of weights and of this machine's calibration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from millstream.core.errors import WeightsError
from millstream.models.brook.files import BUNDLED


def models_folder() -> Path:
    """`$MILLSTREAM_HOME/models`, or `~/.local/share/millstream/models`."""
    home = os.environ.get("MILLSTREAM_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share" / "millstream") / "models"


def profile_path() -> Path:
    """Return the path of this machine's calibration."""
    return models_folder().parent / "profile.json"


def find_weights(model: str, weights: Sequence[str]) -> Sequence[str]:
    """Return the weights that were asked for, the converted folder of that name, or those that come with the
    package."""
    if weights:
        return weights
    folder = models_folder() / model
    if folder.is_dir():
        return [str(folder)]
    if model == "brook":
        return [BUNDLED]
    raise WeightsError(
        f"no weights for {model}: give --weights PATH, convert them to {folder}, or try it untrained with "
        "--weights random"
    )
