"""An optimiser that keeps float32 weights beside its moments; what is computed with are copies, which may be
of fewer bits.

In host memory, a step takes the gradients there, updates there and brings the weights back. On the device,
weights and gradients of a forward and backward pass take half of what they would in float32, and nothing is
cast in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from millstream.train.parallel.optimisers.own import WEIGHT, OwnOptimiser, kept_by, take_back


class Masters(OwnOptimiser):
    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        in_host: bool,
    ) -> None:
        """`make` gives the optimiser of what is in float32, in host memory or where the parameters are."""
        self._in_float32 = _in_host if in_host else _here
        self.masters = {
            parameter: nn.Parameter(self._in_float32(parameter.detach())) for parameter in parameters
        }
        self._optimiser = make(list(self.masters.values()))
        super().__init__(list(parameters), dict(lr=self._optimiser.defaults["lr"]))
        self.state = self._optimiser.state
        """By the float32 weights."""

    def kept(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        master = self.masters[parameter]
        return {WEIGHT: master.detach(), **kept_by(self._optimiser, master)}

    def load_state(self, parameter: nn.Parameter, weight: Tensor, state: Mapping[str, Tensor]) -> None:
        master = self.masters[parameter]
        there = {kind: value.to(master.device) for kind, value in state.items()}
        take_back(self._optimiser, master, weight.to(master.device), there)

    def _update(self) -> None:
        for parameter, master in self.masters.items():
            if parameter.grad is not None:
                master.grad = self._in_float32(parameter.grad)  # held once
                parameter.grad = None
        for mine, theirs in zip(self.param_groups, self._optimiser.param_groups, strict=True):
            theirs["lr"] = mine["lr"]
        self._optimiser.step()
        for parameter, master in self.masters.items():
            master.grad = None
            parameter.copy_(master)


def _in_host(x: Tensor) -> Tensor:
    """Pinned where that makes the way shorter."""
    return torch.empty_like(x, device="cpu", dtype=torch.float32, pin_memory=x.is_cuda).copy_(x)


def _here(x: Tensor) -> Tensor:
    return x.to(torch.float32, copy=True)
