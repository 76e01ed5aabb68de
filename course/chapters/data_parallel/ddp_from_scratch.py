"""Data parallel in five lines, then as the engine has it, then torch's. All three give one process's
gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course.chapters.data_parallel.small_model import ROWS, gradients, loss_of, make_model, make_rows
from course.reader import Reader
from millstream.mesh.local_ranks import must_divide, on_ranks
from millstream.train.parallel.groups import create_world
from millstream.train.parallel.replicas import Replicas


def run(reader: Reader, world: int = 2) -> None:
    must_divide(ROWS, "rows", world)
    model = make_model()
    loss_of(model, make_rows()).backward()
    alone = gradients(model)
    for name in WAYS:
        for rank, found in enumerate(on_ranks(learned, world, name)):
            error = max(float((mine - whole).abs().max()) for mine, whole in zip(found, alone, strict=True))
            assert error < 1e-6, f"{name}, rank {rank}: off by {error}"
        reader.say(
            f"{name:20} {world} ranks, {ROWS // world} rows each: gradients of one process with {ROWS} rows, "
            "within 1e-6"
        )


def learned(rank: int, world: int, name: str) -> list[Tensor]:
    """This rank's gradients, of its own rows and everybody else's."""
    mine = make_rows().chunk(world)[rank]
    return WAYS[name](make_model(), mine)


def by_hand(model: nn.Module, rows: Tensor) -> list[Tensor]:
    loss_of(model, rows).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None, "every parameter takes part"
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return gradients(model)


def as_the_engine_does(model: nn.Module, rows: Tensor) -> list[Tensor]:
    replicas = Replicas(model, create_world())
    loss_of(model, rows).backward()
    replicas.finish()
    return gradients(model)


def by_torch(model: nn.Module, rows: Tensor) -> list[Tensor]:
    wrapped = DistributedDataParallel(model)
    loss_of(wrapped, rows).backward()
    return gradients(model)


WAYS: dict[str, Callable[[nn.Module, Tensor], list[Tensor]]] = {
    "by hand": by_hand,
    "the engine's own": as_the_engine_does,
    "torch's": by_torch,
}
