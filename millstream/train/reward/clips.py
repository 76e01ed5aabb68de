"""Clips that rewards look at, and the type of a reward.

Shapes: B clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardClips:
    pixels_BTCYX: Tensor
    """Pixels as uint8, or in [-1, 1] where gradients are to flow back. Of a fork, the frames after it."""
    prompts: tuple[str, ...]
    fps: float
    is_switched: bool = False
    """True if the prompt was switched right before the first of these frames."""

    def __post_init__(self) -> None:
        assert len(self.prompts) == len(self.pixels_BTCYX), (
            f"{len(self.prompts)} prompts, {len(self.pixels_BTCYX)} clips"
        )

    def __len__(self) -> int:
        return len(self.prompts)


Reward = Callable[[RewardClips], Tensor]
"""Reward: one number a clip [B], more is better; NaN leaves its clip out."""
