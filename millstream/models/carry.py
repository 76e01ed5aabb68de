"""State that a causal video network keeps between calls, passed in and out so that modules hold none of it.

Shapes: B batch, C channels, F latent frames, T frames, Y and X rows and columns.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

VAEState = tuple[Tensor, ...]
"""The tail of every causal layer, in the order the layers are visited. An empty one starts an epoch."""


class VAE(Protocol):
    """Interface of a VAE for sessions: streaming both ways, with the state in the caller's hands."""

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]: ...

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]: ...


class Carry:
    """Hands each layer of one pass its own tail, and collects the new ones."""

    def __init__(self, state: VAEState) -> None:
        self.starts_epoch = not state
        self._old = iter(state)
        self._new: list[Tensor] = []

    def extend(self, x_BCTYX: Tensor, frames: int) -> Tensor:
        """x with the `frames` frames before it, zeros where there were none."""
        assert frames > 0, "a layer that remembers nothing has no tail"
        b, c, _, y, x = x_BCTYX.shape
        tail = x_BCTYX.new_zeros(b, c, frames, y, x) if self.starts_epoch else next(self._old)
        assert tail.shape[2] == frames, (
            f"a past of {tail.shape[2]} frames for a layer that remembers {frames}"
        )
        longer = torch.cat([tail, x_BCTYX], dim=2)
        self._new.append(longer[:, :, -frames:].clone())
        return longer

    def finish(self) -> VAEState:
        assert next(self._old, None) is None, "state belongs to another network"
        return tuple(self._new)
