"""Varied views of a look: changes that a person would not notice should not change what it is worth.

Shapes: B clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.train.methods.classify import soften

MOVED = 6
"""Largest shift in any direction, in pixels of 128."""
DIMMED = 0.1
"""Largest change of brightness either way."""


def varied(looks_BTCYX: Tensor, generator: torch.Generator) -> Tensor:
    """Vary each clip: mirrored or not, moved, brighter or darker, blurred and with noise on it; gradients
    pass."""
    batch = looks_BTCYX.shape[0]
    device = looks_BTCYX.device
    lots_4B = torch.rand(4, batch, generator=generator, device=device)
    mirrored_B = 1.0 - 2.0 * (lots_4B[0] < 0.5).float()
    moved_2B = (2.0 * lots_4B[1:3] - 1.0) * (2.0 * MOVED / looks_BTCYX.shape[-1])
    place_B23 = torch.zeros(batch, 2, 3, device=device)
    place_B23[:, 0, 0], place_B23[:, 1, 1], place_B23[:, :, 2] = mirrored_B, 1.0, moved_2B.T
    frames = looks_BTCYX.flatten(1, 2)
    where = F.affine_grid(place_B23, list(frames.shape), align_corners=False)
    placed = F.grid_sample(frames, where, padding_mode="border", align_corners=False).view_as(looks_BTCYX)
    lighter_B = DIMMED * (2.0 * lots_4B[3] - 1.0)
    return soften(placed + lighter_B[:, None, None, None, None], generator)
