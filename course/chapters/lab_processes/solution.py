"""Lab 01, solution."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


def device_of(rank: int, gpus_here: int) -> str:
    return f"cuda:{rank % gpus_here}" if gpus_here else "cpu"


@torch.no_grad()
def same_start(model: nn.Module) -> None:
    parameters = list(model.parameters())
    together = torch.cat([parameter.flatten() for parameter in parameters])
    dist.broadcast(together, src=0)
    for parameter, part in zip(
        parameters, together.split([each.numel() for each in parameters]), strict=True
    ):
        parameter.copy_(part.view_as(parameter))


@torch.no_grad()
def shared_forward(model: nn.Module, rows: Tensor, rank: int, world: int) -> Tensor:
    most = -(-len(rows) // world)
    mine = rows[rank * most : (rank + 1) * most]
    made = model(mine)
    filled = made.new_zeros(most, *made.shape[1:])
    filled[: len(mine)] = made
    parts = [torch.empty_like(filled) for _ in range(world)]
    dist.all_gather(parts, filled)
    return torch.cat(parts)[: len(rows)]
