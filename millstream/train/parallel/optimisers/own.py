"""Base of our own optimisers: `step`, as torch calls it, and the state, as checkpoints read and restore
it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import overload

import torch
from torch import Tensor, nn

from millstream.core.errors import WeightsError

WEIGHT = "weight"
STEP = "step"


class OwnOptimiser(torch.optim.Optimizer):
    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step. A closure, if given, computes the gradients first and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update()
        return loss

    def kept(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a parameter's state: tensors that are held as it is, or numbers. Includes its weight if that
        is kept beside it."""
        return dict(self.state.get(parameter, {}))

    def load_state(self, parameter: nn.Parameter, weight: Tensor, state: Mapping[str, Tensor]) -> None:
        """Restore the state that an optimiser kept for a parameter, whose weight is restored already."""
        _put(self, parameter, state)

    @abstractmethod
    def _update(self) -> None:
        """Update the parameters by their gradients."""


def kept_by(optimiser: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    return (
        optimiser.kept(parameter)
        if isinstance(optimiser, OwnOptimiser)
        else dict(optimiser.state.get(parameter, {}))
    )


@torch.no_grad()
def take_back(
    optimiser: torch.optim.Optimizer, parameter: nn.Parameter, weight: Tensor, state: Mapping[str, Tensor]
) -> None:
    """Restore a parameter's weight and state, on its device."""
    if weight.shape != parameter.shape:
        raise WeightsError(
            f"the checkpoint is of another model: a weight is {tuple(weight.shape)} there and "
            f"{tuple(parameter.shape)} here; "
            "remove it, or name another folder"
        )
    parameter.copy_(weight)
    if not isinstance(optimiser, OwnOptimiser):
        _put(optimiser, parameter, state)
    elif state:
        optimiser.load_state(parameter, weight, state)


def _put(optimiser: torch.optim.Optimizer, parameter: nn.Parameter, state: Mapping[str, Tensor]) -> None:
    """Set a parameter's state. The step count is in host memory, except for torch's fused kernels."""
    fused = any(
        group.get("fused") and any(each is parameter for each in group["params"])
        for group in optimiser.param_groups
    )
    if state:
        kept = {kind: value.cpu() if kind == STEP and not fused else value for kind, value in state.items()}
        optimiser.state[parameter] = kept


class Together(OwnOptimiser):
    """Several optimisers of different parameters, used as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        """The parts share their groups and state with this one, and are no longer used by themselves."""
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts
        for part in parts:
            part.state = self.state

    def _update(self) -> None:
        for part in self._parts:
            part.step()
