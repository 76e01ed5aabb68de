"""An optimiser in host memory: it keeps float32 weights and moments there; the device has weights to compute with.

A step takes the gradients to the host, updates there and brings the weights back. What is on the device may be of fewer bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from millstream.parallel.training.optimisers.own import WEIGHT, OwnOptimiser, kept_by, take_back


class Offloaded(OwnOptimiser):
    def __init__(self, parameters: Sequence[nn.Parameter], make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
        """`make` gives the optimiser of what is in host memory."""
        self.masters = {parameter: nn.Parameter(_in_host(parameter.detach())) for parameter in parameters}
        self._optimiser = make(list(self.masters.values()))
        super().__init__(list(parameters), dict(lr=self._optimiser.defaults["lr"]))
        self.state = self._optimiser.state
        """By the weights in host memory."""

    def kept(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        master = self.masters[parameter]
        return {WEIGHT: master.detach(), **kept_by(self._optimiser, master)}

    def take(self, parameter: nn.Parameter, weight: Tensor, state: Mapping[str, Tensor]) -> None:
        take_back(self._optimiser, self.masters[parameter], weight.cpu(), {kind: value.cpu() for kind, value in state.items()})

    def _update(self) -> None:
        for parameter, master in self.masters.items():
            master.grad = None if parameter.grad is None else _in_host(parameter.grad)
        for mine, theirs in zip(self.param_groups, self._optimiser.param_groups, strict=True):
            theirs["lr"] = mine["lr"]
        self._optimiser.step()
        for parameter, master in self.masters.items():
            master.grad = None
            parameter.copy_(master)


def _in_host(x: Tensor) -> Tensor:
    """In float32, and pinned where that makes the way shorter."""
    return torch.empty_like(x, device="cpu", dtype=torch.float32, pin_memory=x.is_cuda).copy_(x)
