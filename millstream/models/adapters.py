"""LoRA layers that learn: a frozen linear layer and, beside it, a product of two thin matrices that begins at
zero.

What was learnt is written as a LoRA that every loader of this project, and most others, merge into a model's
weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.files import Staging
from millstream.models.dit import CausalDiT
from millstream.models.weights.parts import canonical
from millstream.models.weights.same_bytes import save_alike

AdaptedPart = Literal["self_attn", "cross_attn", "ffn"]
"""Part of a block whose linear layers are all adapted."""


class LoRALinear(nn.Module):
    """A linear layer with a LoRA, in the place of the plain one. Parameters have the names that files use."""

    def __init__(self, plain: nn.Linear, rank: int, alpha: float, device: torch.device) -> None:
        super().__init__()
        assert rank >= 1, f"adapters of rank {rank}"
        self.plain = plain
        self.lora_A = nn.Linear(plain.in_features, rank, bias=False, device=device)
        self.lora_B = nn.Linear(rank, plain.out_features, bias=False, device=device)
        self._scale = alpha / rank
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(x) + self._learnt(x)

    def product(self, x: Tensor) -> Tensor:
        """Return the layer's output, with what was learnt, without the bias."""
        return product_of(self.plain, x) + self._learnt(x)

    def _learnt(self, x: Tensor) -> Tensor:
        learnt: Tensor = self.lora_B(self.lora_A(x)) * self._scale
        return learnt


@runtime_checkable
class MakesProduct(Protocol):
    """A layer that can compute its output without its bias."""

    def product(self, x: Tensor) -> Tensor: ...


def product_of(layer: nn.Linear | LoRALinear, x: Tensor) -> Tensor:
    """Return a layer's product with `x`, without its bias."""
    return layer.product(x) if isinstance(layer, MakesProduct) else F.linear(x, layer.weight)


def plain_of(layer: nn.Linear | LoRALinear) -> nn.Linear:
    return layer.plain if isinstance(layer, LoRALinear) else layer


def add_adapters(dit: CausalDiT, *, rank: int, alpha: float, parts: Sequence[AdaptedPart]) -> None:
    """Add LoRA layers to these parts of every block, and freeze everything else. Set the same seed before it
    on every rank, so that all begin alike."""
    dit.requires_grad_(requires_grad=False)
    device = dit.patch_in.weight.device  # the blocks' weights may be unread still
    for block in dit.blocks:
        for part in parts:
            inside = block.get_submodule(part)
            for name, layer in list(inside.named_children()):
                if isinstance(layer, nn.Linear):
                    inside.set_submodule(name, LoRALinear(layer, rank, alpha, device))


def save_adapters(path: Path, learnt: Mapping[str, Tensor], alpha: float, about: Mapping[str, str]) -> None:
    """Write a LoRA under the names of the original layout. The file appears by rename."""
    layers = dict.fromkeys(name.rpartition(".lora_")[0] for name in learnt)
    theirs = canonical("dit", "original", [f"{layer}.weight" for layer in layers])
    tensors = dict[str, Tensor]()
    for layer in layers:
        stem = theirs[f"{layer}.weight"].removesuffix(".weight")
        for factor in ("lora_A", "lora_B"):
            tensors[f"{stem}.{factor}.weight"] = (
                learnt[f"{layer}.{factor}.weight"].to("cpu", torch.float32).contiguous()
            )
        tensors[f"{stem}.alpha"] = torch.tensor(alpha)
    with Staging(path.parent) as staging:
        save_alike(tensors, staging.path(path.name), about)
