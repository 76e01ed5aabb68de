"""Video chapter 1, solution."""

from __future__ import annotations

import torch
from torch import Tensor


def latent_frames(pictures: int) -> int:
    return -(-(pictures - 1) // 4) + 1


def causal_mean(frames_FC: Tensor, tail_2C: Tensor) -> tuple[Tensor, Tensor]:
    longer = torch.cat([tail_2C, frames_FC])
    return longer.unfold(0, 3, 1).mean(dim=-1), longer[-2:]
