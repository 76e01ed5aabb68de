"""Muon: momentum whose matrices are made orthogonal before they are applied.

torch.optim.Muon does it matrix by matrix, which for a small model is sixty rounds of tiny kernels: half of a training
step. Here matrices of one shape are stacked and done together. Same update, same scale as AdamW's ("match_rms_adamw").
Shapes: K matrices, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn

from millstream.ops.precision import working_dtype

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5


class Muon(torch.optim.Optimizer):
    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0, momentum: float = 0.95
    ) -> None:
        groups: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter in parameters:
            assert parameter.ndim == 2, f"Muon is for matrices, got {tuple(parameter.shape)}"
            groups.setdefault(parameter.shape, []).append(parameter)
        super().__init__(
            [{"params": group} for group in groups.values()], dict(lr=lr, weight_decay=weight_decay, momentum=momentum)
        )

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
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        """One step of the matrices of one shape, those that have gradients."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        gradients = [parameter.grad for parameter in parameters]
        moments = [self.state[p].setdefault("momentum", torch.zeros_like(p)) for p in parameters]
        torch._foreach_lerp_(moments, gradients, 1.0 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, moments, group["momentum"])  # Nesterov
        updates = orthogonal(torch.stack(ahead))
        rows, columns = parameters[0].shape
        torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, list(updates.unbind(0)), alpha=-group["lr"] * 0.2 * max(rows, columns) ** 0.5)


def orthogonal(x_KRC: Tensor) -> Tensor:
    """The nearest orthogonal matrices, about: Newton-Schulz iterations in the working dtype."""
    a, b, c = _COEFFICIENTS
    tall = x_KRC.shape[1] > x_KRC.shape[2]
    x: Tensor = (x_KRC.mT if tall else x_KRC).to(working_dtype(x_KRC.device))
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(x_KRC.dtype)
