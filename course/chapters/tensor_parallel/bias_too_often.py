"""A bias that is added before the sum is added once for each rank. The output has the right shape and is
wrong."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course.chapters.tensor_parallel.tensor_mlp import HIDDEN, WIDTH
from course.reader import Reader
from millstream.mesh.local_ranks import must_divide, on_ranks


def run(reader: Reader, world: int = 2) -> None:
    must_divide(HIDDEN, "hidden units", world)
    hidden, weight, bias = example()
    whole = hidden @ weight.T + bias
    for rank, (before, after) in enumerate(on_ranks(both_places, world)):
        assert torch.allclose(after, whole, atol=1e-5), f"rank {rank}: after the sum it is right"
        assert torch.allclose(before - whole, (world - 1) * bias.expand_as(whole), atol=1e-5), f"rank {rank}"
    reader.say("symptom: shapes fit, nothing hangs, ranks agree with each other, and the output is off")
    reader.say(
        f"tool: one rank against {world}; the difference is {world - 1} times the bias, the same for every token"
    )
    reader.say(
        "fix: add it once, after the sum, as TensorMLP.forward does; on one rank both are the same, so tests "
        "need two"
    )


def example() -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    return (
        torch.randn(3, HIDDEN, generator=made),
        torch.randn(WIDTH, HIDDEN, generator=made),
        torch.randn(WIDTH, generator=made),
    )


def both_places(rank: int, world: int) -> tuple[Tensor, Tensor]:
    hidden, weight, bias = example()
    part = hidden.chunk(world, dim=1)[rank] @ weight.chunk(world, dim=1)[rank].T
    before = part + bias
    dist.all_reduce(before)
    dist.all_reduce(part)
    return before, part + bias
