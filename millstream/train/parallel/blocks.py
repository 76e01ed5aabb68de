"""Tensor and context parallel for a DiT that learns: the layers that stream, over groups that gradients flow
back through.

Tensor parallel gives each rank some heads and hidden units. What comes into a block's parallel part is used
by every rank for its own, so on the way back its gradients are summed; everything outside is done by all
ranks alike. Of a LoRA in such a part one factor is split as its layer is and the other whole: each rank uses
it for its own, so its gradients are summed too. Context parallel gives each rank some tokens of every frame,
so that early and late chunks, which see little and much, cost all ranks the same. A rank's gradients are then
those of its own tokens, and sum up over the group.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from millstream.models.adapters import LoRALinear
from millstream.models.dit import CausalDiT
from millstream.parallel.mesh_dit import MeshDiT
from millstream.parallel.sequence import SequenceDiT
from millstream.parallel.shares import ParameterShare, keep_share, split_along
from millstream.parallel.tensor import connect_tensors
from millstream.train.parallel.gradients import GradientGroup
from millstream.train.parallel.groups import TrainingGroups


def share_blocks(dit: CausalDiT, groups: TrainingGroups) -> CausalDiT | MeshDiT:
    """Share out `dit`, which is whole here, in place; return what is to be called instead of it."""
    if groups.tensor.size > 1:
        _share_tensors(dit, groups.tensor)
    if groups.context.size > 1:
        return SequenceDiT(dit, groups.context)
    return dit


def _share_tensors(dit: CausalDiT, group: GradientGroup) -> None:
    share = ParameterShare(layers=range(len(dit.blocks)), parts=group.size, place=group.place)
    learns = {name: parameter.requires_grad for name, parameter in dit.named_parameters()}
    keep_share(dit, share)
    for name, parameter in dit.named_parameters():
        parameter.requires_grad_(learns[name])
    connect_tensors(dit, group)
    for block in dit.blocks:
        for part in (block.self_attn, block.ffn):
            _enter_by_share(part, group)
    for name, layer in list(dit.named_modules()):
        if isinstance(layer, LoRALinear) and split_along(f"{name}.plain.weight") is not None:
            factor = "lora_A" if split_along(f"{name}.lora_A.weight") is None else "lora_B"
            layer.set_submodule(factor, SharedFactor(layer.get_submodule(factor), group))


class SharedFactor(nn.Module):
    """Linear layer whose weight is whole on every rank, where each rank uses it for its own part of what
    follows or of what came before."""

    def __init__(self, plain: nn.Module, group: GradientGroup) -> None:
        super().__init__()
        assert isinstance(plain, nn.Linear), f"a factor of a LoRA is a product, got {type(plain)}"
        self.weight = plain.weight
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self._group.share(self.weight, "factor"))


def _enter_by_share(part: nn.Module, group: GradientGroup) -> None:
    def shared(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return group.share(given[0], "input"), *given[1:]

    part.register_forward_pre_hook(shared)
