"""An optimiser of torch's that looks at whole parameters, over parameters of which a rank holds parts.

Each parameter in turn is collected, stepped by itself on every rank that shares it, and the rank's part of it
kept. What the optimiser keeps is whole on every rank: this is for one that keeps little, as Adafactor does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from millstream.train.parallel.optimisers.own import OwnOptimiser
from millstream.train.parallel.parts import Parts


class InWhole(OwnOptimiser):
    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        parts: Parts,
    ) -> None:
        """`make` gives the optimiser of one parameter."""
        self._parts = parts
        self._wholes = {parameter: nn.Parameter(torch.empty(0)) for parameter in parameters}
        self._each = {parameter: make([whole]) for parameter, whole in self._wholes.items()}
        said = next(iter(self._each.values())).defaults if parameters else {"lr": 0.0}
        super().__init__(list(parameters), dict(lr=said["lr"]))

    def _update(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group["lr"])

    def _step(self, parameter: nn.Parameter, lr: float) -> None:
        optimiser = self._each[parameter]
        whole = self._wholes[parameter]
        assert parameter.grad is not None, "asked before"
        optimiser.param_groups[0]["lr"] = lr
        if parameter in self.state:
            optimiser.state[whole] = self.state[parameter]
        whole.data = self._parts.whole(parameter, parameter.detach())
        whole.grad = self._parts.whole(parameter, parameter.grad)
        optimiser.step()
        parameter.copy_(self._parts.part(parameter, whole.detach()))
        self.state[parameter] = optimiser.state[whole]
        whole.data = torch.empty(0)
        whole.grad = None
