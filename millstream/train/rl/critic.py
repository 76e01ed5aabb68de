"""Critic of PPO: predicts what a stream will be worth, from what is known before a step is taken.

Sees the latents that the step starts from, the finished chunk before it, the prompt, the noise level and the
chunk's number.
Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.schedule import FULL

MOMENTS = 8
"""Chunk number from which on the critic sees all numbers as the same."""


class StreamCritic(nn.Module):
    def __init__(self, *, channels: int, frames_per_chunk: int, text_width: int, width: int = 64) -> None:
        super().__init__()
        seen = 2 * frames_per_chunk * channels
        self.first = nn.Conv2d(seen, width, 3, stride=2, padding=1)
        self.second = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.text = nn.Linear(text_width, width)
        self.hidden = nn.Linear(2 * width + 2, width)
        self.value = nn.Linear(width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(
        self, start_BFCYX: Tensor, before_BFCYX: Tensor, text_BSE: Tensor, level: float, chunk: int
    ) -> Tensor:
        """Return the predicted worth [B]."""
        seen = torch.cat([start_BFCYX, before_BFCYX], dim=1).flatten(1, 2)
        looked = F.silu(self.second(F.silu(self.first(seen)))).mean(dim=(2, 3))
        told = seen.new_tensor([level / FULL, min(chunk, MOMENTS) / MOMENTS]).expand(len(seen), 2)
        hidden = torch.cat([looked, F.silu(self.text(text_BSE.mean(dim=1))), told], dim=1)
        value: Tensor = self.value(F.silu(self.hidden(hidden))).squeeze(1)
        return value
