"""Chapter 2, solution."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def shift(x: Tensor, rank: int, world: int) -> Tensor:
    if world == 1:
        return x.clone()
    found = torch.empty_like(x)
    leaving = dist.isend(x, dst=(rank + 1) % world)
    assert leaving is not None, "a rank sends to another one"
    dist.recv(found, src=(rank - 1) % world)
    leaving.wait()
    return found


def pipeline_turns(stages: int, parts: int) -> int:
    return stages + parts - 1
