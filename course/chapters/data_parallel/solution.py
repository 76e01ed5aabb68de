"""Chapter 5, solution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(module: nn.Module, world: int) -> None:
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together)
    parts = (together / world).split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def in_buckets(sizes: Sequence[int], limit: int) -> list[list[int]]:
    buckets = list[list[int]]()
    filled = 0
    for place in reversed(range(len(sizes))):
        if not buckets or filled + sizes[place] > limit:
            buckets.append([])
            filled = 0
        buckets[-1].append(place)
        filled += sizes[place]
    return buckets
