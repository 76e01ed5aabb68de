"""Rewards that are formulas of pixels. Each is 0 to 1, or -1 to 0 where less is better.

Shapes: B clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from millstream.ops.pixels import from_bytes
from millstream.train.evaluate import metrics
from millstream.train.reward.clips import Reward, RewardClips

LOOKED_AT = 16
"""Number of clips at once: as floats they are large."""


def motion(clips: RewardClips) -> Tensor:
    """Return the mean absolute change from frame to frame, as a share of the whole range."""
    return _each(clips, lambda pixels: pixels.diff(dim=1).abs().mean(dim=(1, 2, 3, 4)) / 2)


def brightness(clips: RewardClips) -> Tensor:
    """Return the mean of all channels: black is 0, white 1."""
    return _each(clips, lambda pixels: (pixels.mean(dim=(1, 2, 3, 4)) + 1) / 2)


def flicker(clips: RewardClips) -> Tensor:
    """Return the negative mean second difference in time: near 0 for even motion."""
    return _each(clips, lambda pixels: -metrics.flicker(pixels) / 4)


def edges(clips: RewardClips) -> Tensor:
    """Return how crisp the crispest edges are, as a share of the whole range: other rewards reduce it unless
    it is rewarded too."""
    return _each(clips, lambda pixels: metrics.edge_strength(pixels) / 2)


def colour_drift(clips: RewardClips) -> Tensor:
    """Return the negative distance between the mean colours of the first and the last quarter of a clip."""
    return _each(clips, _drift)


def _drift(pixels_BTCYX: Tensor) -> Tensor:
    quarter = max(1, pixels_BTCYX.shape[1] // 4)
    colour_BTC = pixels_BTCYX.mean(dim=(3, 4))
    moved_BC = colour_BTC[:, -quarter:].mean(dim=1) - colour_BTC[:, :quarter].mean(dim=1)
    return -moved_BC.square().mean(dim=1).sqrt() / 2


def _each(clips: RewardClips, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a formula to the clips' pixels in [-1, 1], some clips at a time."""
    parts = clips.pixels_BTCYX.split(LOOKED_AT)
    return torch.cat([formula(part if part.is_floating_point() else from_bytes(part)) for part in parts])


ANALYTIC: dict[str, Reward] = {
    "motion": motion,
    "brightness": brightness,
    "flicker": flicker,
    "edges": edges,
    "colour_drift": colour_drift,
}
"""Rewards by the name that a recipe gives them."""
