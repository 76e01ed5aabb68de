"""What rewards look at, and what a reward is.

Shapes: B clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardClips:
    pixels_BTCYX: Tensor
    """uint8, or in [-1, 1] where gradients are to flow back. Of a fork, the frames after it."""
    prompts: tuple[str, ...]
    fps: float
    is_switched: bool = False
    """Whether the first of these frames is the first under the prompt, after others under another one."""

    def __post_init__(self) -> None:
        assert len(self.prompts) == len(self.pixels_BTCYX), f"{len(self.prompts)} prompts, {len(self.pixels_BTCYX)} clips"

    def __len__(self) -> int:
        return len(self.prompts)


Reward = Callable[[RewardClips], Tensor]
"""One number a clip [B], more is better; one that is no number leaves its clip out."""
