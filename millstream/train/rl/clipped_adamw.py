"""AdamW that clips gradients, and skips a step whose gradients are not finite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn


class ClippedAdamW:
    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float, grad_clip: float
    ) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.inner = torch.optim.AdamW(self._parameters, lr=lr, betas=(0.9, 0.99), weight_decay=weight_decay)
        self._grad_clip = grad_clip

    def set_rate(self, lr: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = lr

    def step(self) -> float:
        """Take a step and drop the gradients; return their norm before clipping. No step is taken where it is
        not finite."""
        norm = nn.utils.clip_grad_norm_(self._parameters, self._grad_clip)
        if norm.isfinite():
            self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        return float(norm)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


def move_learning(
    modules: Sequence[nn.Module], optimisers: Sequence[torch.optim.Optimizer], device: torch.device
) -> None:
    """Move weights and optimiser state to a device; parameters stay the same objects."""
    for module in modules:
        module.to(device)
    for optimiser in optimisers:
        for kept in optimiser.state.values():
            kept |= {
                name: value.to(device) for name, value in kept.items() if name != "step"
            }  # which lives on the host
