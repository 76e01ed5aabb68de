"""Lab 04. Fill in the functions and classes, then run `millstream course check lab-04`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def survives(value: float, dtype: torch.dtype) -> bool:
    """Return whether a gradient of this size is still a number other than zero once it is in `dtype`."""
    raise NotImplementedError("survives")


def root_mean_square(x: Tensor) -> Tensor:
    """Return the root mean square over the last dimension, in the type of `x`. 300 squared is more than
    float16 can hold, and must not overflow."""
    raise NotImplementedError("root_mean_square")


class LossScaler:
    """Scales losses up before the backward pass, so that small gradients survive float16."""

    def __init__(self, value: float = 65536.0, grows_after: int = 3) -> None:
        """`grows_after`: so many steps in a row without overflow double the scale."""
        self.value = value
        raise NotImplementedError("LossScaler")

    def scaled(self, loss: Tensor) -> Tensor:
        raise NotImplementedError("scaled")

    def step(self, optimiser: torch.optim.Optimizer) -> bool:
        """Scale gradients down and step. If one of them is not finite: no step, half the scale. Whether a
        step was made."""
        raise NotImplementedError("step")


class MasterWeights:
    """Gradient descent for parameters in 16 bits, by copies of them in float32."""

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float) -> None:
        raise NotImplementedError("MasterWeights")

    def step(self) -> None:
        """Follow the gradients in float32, then have the parameters say the same as nearly as they can."""
        raise NotImplementedError("step")
