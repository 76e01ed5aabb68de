"""Optimisers, learning rates and averages: what turns gradients into weights, whatever the method."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from millstream.train.parallel.optimisers.choice import is_block_matrix
from millstream.train.parallel.optimisers.muon import Muon
from millstream.train.recipe import StepRecipe


def learning_rate(recipe: StepRecipe, step: int) -> float:
    """Rises over the warm-up, then stays or follows half a cosine to a hundredth."""
    warm = min(1.0, (step + 1) / max(1, recipe.warm_up))
    if recipe.schedule == "constant":
        return recipe.lr * warm
    done = min(1.0, step / max(1, recipe.cosine_over or recipe.steps))
    return recipe.lr * warm * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done)))


class Optimisers:
    """Muon for the matrices inside transformer blocks, AdamW for everything else."""

    def __init__(self, module: nn.Module, recipe: StepRecipe) -> None:
        self.recipe = recipe
        named = [
            (name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad
        ]
        matrices = [parameter for name, parameter in named if is_block_matrix(name, parameter.ndim)]
        chosen = {id(parameter) for parameter in matrices}
        rest = [parameter for _, parameter in named if id(parameter) not in chosen]
        self.parameters = [parameter for _, parameter in named]
        self._all: list[torch.optim.Optimizer] = []
        if matrices:
            self._all.append(Muon(matrices, lr=recipe.lr, weight_decay=recipe.weight_decay))
        if rest:
            self._all.append(
                torch.optim.AdamW(rest, lr=recipe.lr, betas=(0.9, 0.99), weight_decay=recipe.weight_decay)
            )

    def step(self, number: int) -> Tensor:
        """Apply the gradients and drop them. Returns their norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.recipe.grad_clip)
        for optimiser in self._all:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(self.recipe, number)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimiser.state_dict() for optimiser in self._all]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for optimiser, state in zip(self._all, states, strict=True):
            optimiser.load_state_dict(state)


class Average:
    """An exponential moving average of a module's weights; young averages follow more closely."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = copy.deepcopy(module).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        keep = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.module.parameters()), list(module.parameters()), 1.0 - keep)
