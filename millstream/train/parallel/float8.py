"""A DiT whose blocks make their matmuls in 8-bit floats: everything around them stays as it is in
bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from millstream.core.errors import ConfigError
from millstream.models.dit import CausalDiT
from millstream.ops.float8_product import MULTIPLE, float8_product

FIRST_CAPABILITY = (8, 9)


class Float8Linear(nn.Linear):
    """In the place of a linear layer, with its weights."""

    def forward(self, x: Tensor) -> Tensor:
        found = self.product(x)
        return found if self.bias is None else found + self.bias.to(found.dtype)

    def product(self, x: Tensor) -> Tensor:
        return float8_product(x.to(torch.bfloat16), self.weight)


def use_float8(dit: CausalDiT) -> None:
    """In place, before the blocks are shared out. The thin factors of a LoRA stay as they are."""
    refuse_float8(next(dit.parameters()).device)
    replace_products(dit)


def refuse_float8(device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < FIRST_CAPABILITY:
        raise ConfigError(
            "precision = fp8 needs a GPU that multiplies 8-bit floats (Ada, Hopper or a newer one); take bf16"
        )


def replace_products(dit: CausalDiT) -> None:
    for name, layer in list(dit.blocks.named_modules()):
        if (
            isinstance(layer, nn.Linear)
            and "lora_" not in name
            and not any(n % MULTIPLE for n in layer.weight.shape)
        ):
            made = Float8Linear(layer.in_features, layer.out_features, device="meta")
            made.weight = layer.weight
            made.bias = layer.bias
            dit.blocks.set_submodule(name, made)
