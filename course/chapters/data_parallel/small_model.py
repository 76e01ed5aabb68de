"""A model and its rows for the scripts of this chapter: small, and the same on every rank."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 8
WIDTH = 16


def make_model(layers: int = 3, width: int = WIDTH) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))


def make_rows(rows: int = ROWS, width: int = WIDTH) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """A mean over rows, so that means over ranks with equally many rows are the mean over all."""
    loss: Tensor = model(rows).square().mean()
    return loss


def gradients(model: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in model.parameters()]
    assert all(each is not None for each in found), "a parameter has no gradient"
    return [each.clone() for each in found if each is not None]
