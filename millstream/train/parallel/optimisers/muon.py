"""Muon: momentum whose matrices are made orthogonal before they are applied.

torch.optim.Muon does it matrix by matrix, which for a small model is sixty rounds of tiny kernels: half of a
training step. Here matrices of one shape are stacked and done together. Same update, same scale as AdamW's
("match_rms_adamw"). A rank that holds part of a matrix keeps that part of the momentum; the matrix is
collected to be made orthogonal, and every rank does that by itself.
Shapes: K matrices, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from millstream.ops.precision import working_dtype
from millstream.train.parallel.optimisers.own import OwnOptimiser
from millstream.train.parallel.parts import Parts

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
AT_ONCE_BYTES = 1 << 30
"""Bytes of matrices that are whole at a time."""


class Muon(OwnOptimiser):
    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        parts: Parts | None = None,
    ) -> None:
        """Parameters are whole, unless `parts` can collect the wholes that they are parts of."""
        self._parts = parts
        groups: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter in parameters:
            shape = parameter.shape if parts is None else parts.shape(parameter)
            assert len(shape) == 2, f"Muon is for matrices, got {tuple(shape)}"
            groups.setdefault(shape, []).append(parameter)
        super().__init__(
            [{"params": group} for group in groups.values()],
            dict(lr=lr, weight_decay=weight_decay, momentum=momentum),
        )

    def _update(self) -> None:
        for group in self.param_groups:
            self._update_group(group)

    def _update_group(self, group: dict[str, Any]) -> None:
        """Take one step for the matrices of one shape that have gradients."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            self.state[parameter].setdefault("step", torch.tensor(0.0)).add_(1)
        moments = [self.state[p].setdefault("momentum", torch.zeros_like(p)) for p in parameters]
        torch._foreach_lerp_(moments, gradients, 1.0 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, moments, group["momentum"])  # Nesterov
        torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
        for some, values in self._some(parameters, ahead):
            updates = orthogonal(
                torch.stack([self._whole(p, value) for p, value in zip(some, values, strict=True)])
            )
            rate = group["lr"] * 0.2 * max(updates.shape[1:]) ** 0.5
            torch._foreach_add_(
                some, [self._part(p, update) for p, update in zip(some, updates, strict=True)], alpha=-rate
            )

    def _some(
        self, parameters: Sequence[nn.Parameter], values: Sequence[Tensor]
    ) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yield as many parameters and their values as may be whole at a time."""
        shape = parameters[0].shape if self._parts is None else self._parts.shape(parameters[0])
        most = max(1, AT_ONCE_BYTES // (shape.numel() * parameters[0].element_size()))
        for begin in range(0, len(parameters), most):
            yield list(parameters[begin : begin + most]), list(values[begin : begin + most])

    def _whole(self, parameter: Tensor, value: Tensor) -> Tensor:
        return value if self._parts is None else self._parts.whole(parameter, value)

    def _part(self, parameter: Tensor, update: Tensor) -> Tensor:
        return update if self._parts is None else self._parts.part(parameter, update)


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
