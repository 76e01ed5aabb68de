"""Keys, mouse and gamepad as an entry of a DiT: a vector a frame, added to the embedding of its noise level.

That embedding modulates every block and the head, so one small network reaches them all and none is changed.
Nothing has a bias: without input a frame's vector is zero, and so is what comes of it, exactly.
Shapes: B batch, F frames, A numbers of an action, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.conditions import FrameActions
from millstream.core.config import ActionsConfig

LOOK_UNIT = 45.0
"""Degrees of a turn that count as 1, as a key that is held does."""


class ActionInjector(nn.Module):
    """Two linear maps without biases; untrained, it changes nothing."""

    def __init__(self, config: ActionsConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.up = nn.Linear(config.features, width, bias=False)
        self.down = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, actions_BFA: Tensor) -> Tensor:
        """Entry of each frame [B, F, D], to be added to its time embedding."""
        entry: Tensor = self.down(F.silu(self.up(actions_BFA)))
        return entry


def action_vectors(frames: Sequence[FrameActions], config: ActionsConfig) -> Tensor:
    """Numbers of each frame [F, A]: 1 for a key that is held, turns in units of `LOOK_UNIT`, axes. Keys and
    axes that the model does not know mean nothing to it."""
    return torch.tensor([_vector(frame, config) for frame in frames], dtype=torch.float32).view(
        len(frames), config.features
    )


def _vector(frame: FrameActions, config: ActionsConfig) -> list[float]:
    keys = [float(key in frame.keys) for key in config.keys]
    look = [turn / LOOK_UNIT for turn in frame.look] if config.look else []
    axes = [*frame.axes, *(0.0,) * config.axes][: config.axes]
    return [*keys, *look, *axes]
