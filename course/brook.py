"""Brook for the video track: the small model that comes with the package, on the CPU in float32, and a clip
of its world."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from millstream.core.presets import find_model
from millstream.models.brook.files import BUNDLED
from millstream.models.registry import LoadedModel, load_model
from millstream.train.data.render import render
from millstream.train.data.scene import sample_scenes

CPU = torch.device("cpu")


@cache
def brook() -> LoadedModel:
    return load_model(find_model("brook"), [BUNDLED], device=CPU, dtype=torch.float32)


def clip(frames: int, size: int = 64, seed: int = 3) -> Tensor:
    """A rendered scene: [1, T, 3, Y, X] in -1 to 1."""
    return render(sample_scenes(1, seed=seed), frames=frames, size=(size, size))
