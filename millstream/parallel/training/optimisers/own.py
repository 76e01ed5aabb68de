"""What our own optimisers share: a step, as torch asks for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import overload

import torch


class OwnOptimiser(torch.optim.Optimizer):
    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """A closure computes the gradients first and says the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update()
        return loss

    @abstractmethod
    def _update(self) -> None:
        """Follow the gradients that are there."""
