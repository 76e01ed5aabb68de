"""What our own optimisers share: a step, as torch asks for it, and what they keep, as checkpoints ask for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import overload

import torch
from torch import Tensor, nn

from millstream.core.errors import WeightsError

WEIGHT, STEP = "weight", "step"


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

    def kept(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """For a parameter: tensors held as it is, or numbers. Its weight too, if that is kept beside it."""
        return dict(self.state.get(parameter, {}))

    def take(self, parameter: nn.Parameter, weight: Tensor, state: Mapping[str, Tensor]) -> None:
        """What some optimiser kept; the weight it had is given back already."""
        _put(self, parameter, state)

    @abstractmethod
    def _update(self) -> None:
        """Follow the gradients that are there."""


def kept_by(optimiser: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    return optimiser.kept(parameter) if isinstance(optimiser, OwnOptimiser) else dict(optimiser.state.get(parameter, {}))


@torch.no_grad()
def take_back(optimiser: torch.optim.Optimizer, parameter: nn.Parameter, weight: Tensor, state: Mapping[str, Tensor]) -> None:
    """A parameter's weight and state, on its device."""
    if weight.shape != parameter.shape:
        raise WeightsError(
            f"the checkpoint is of another model: a weight is {tuple(weight.shape)} there and {tuple(parameter.shape)} here; "
            "remove it, or name another folder"
        )
    parameter.copy_(weight)
    if not isinstance(optimiser, OwnOptimiser):
        _put(optimiser, parameter, state)
    elif state:
        optimiser.take(parameter, weight, state)


def _put(optimiser: torch.optim.Optimizer, parameter: nn.Parameter, state: Mapping[str, Tensor]) -> None:
    """Steps are counted in host memory, but by torch's fused kernels."""
    fused = any(group.get("fused") and any(each is parameter for each in group["params"]) for group in optimiser.param_groups)
    if state:
        kept = {kind: value.cpu() if kind == STEP and not fused else value for kind, value in state.items()}
        optimiser.state[parameter] = kept


class Together(OwnOptimiser):
    """Several optimisers, of different parameters, as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        """They share their groups and what they keep with it, and are not used by themselves any more."""
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts
        for part in parts:
            part.state = self.state

    def _update(self) -> None:
        for part in self._parts:
            part.step()
