"""Modules that are built to be filled have their shapes, and nothing was drawn for them."""

from __future__ import annotations

import torch
from torch import nn

from millstream.core.presets import MODELS
from millstream.models.dit import CausalDiT
from millstream.models.empty import empty_modules


def shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}


def test_an_empty_model_has_the_shapes_of_a_full_one_and_takes_no_memory() -> None:
    with empty_modules():
        empty = CausalDiT(MODELS["wan-tiny"].dit)
    assert shapes(empty) == shapes(CausalDiT(MODELS["wan-tiny"].dit))
    assert all(parameter.is_meta for parameter in empty.parameters())


def test_nothing_is_drawn_inside_and_everything_after_it() -> None:
    with empty_modules():
        weight = nn.init.normal_(torch.empty(3, device="cpu").fill_(7.0))
    assert weight.tolist() == [7.0, 7.0, 7.0]
    assert nn.init.zeros_(torch.ones(3)).tolist() == [0.0, 0.0, 0.0]
