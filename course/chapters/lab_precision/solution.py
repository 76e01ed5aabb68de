"""Lab 04, solution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def survives(value: float, dtype: torch.dtype) -> bool:
    kept = float(torch.tensor(value, dtype=torch.float64).to(dtype))
    return math.isfinite(kept) and kept != 0


def root_mean_square(x: Tensor) -> Tensor:
    return x.float().square().mean(dim=-1).sqrt().to(x.dtype)


class LossScaler:
    def __init__(self, value: float = 65536.0, grows_after: int = 3) -> None:
        self.value = value
        self._grows_after = grows_after
        self._good = 0

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.value

    @torch.no_grad()
    def step(self, optimiser: torch.optim.Optimizer) -> bool:
        parameters = [
            each for group in optimiser.param_groups for each in group["params"] if each.grad is not None
        ]
        if not all(bool(each.grad.isfinite().all()) for each in parameters):
            self.value = self.value / 2
            self._good = 0
            return False
        for each in parameters:
            each.grad /= self.value
        optimiser.step()
        self._good += 1
        if self._good == self._grows_after:
            self.value = 2 * self.value
            self._good = 0
        return True


class MasterWeights:
    def __init__(self, parameters: Sequence[nn.Parameter], lr: float) -> None:
        self._parameters = list(parameters)
        self._lr = lr
        self._masters = [each.detach().float().clone() for each in self._parameters]

    @torch.no_grad()
    def step(self) -> None:
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            assert parameter.grad is not None, "a backward pass came before"
            master -= self._lr * parameter.grad.float()
            parameter.copy_(master)
