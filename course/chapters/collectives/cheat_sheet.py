"""Every collective once, on tiny tensors: what each rank had, and what it has afterwards."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks

Shown = dict[str, tuple[str, str]]
"""Before and after, by the collective's name."""


def run(reader: Reader, world: int = 3) -> None:
    ranks: list[Shown] = on_ranks(every_collective, world)
    for name in ranks[0]:
        reader.say(name)
        for rank, shown in enumerate(ranks):
            before, after = shown[name]
            reader.say(f"  rank {rank}: {before:15} -> {after}")
    assert all(shown["all-reduce"][1] == ranks[0]["all-reduce"][1] for shown in ranks), (
        "an all-reduce leaves all ranks alike"
    )


def every_collective(rank: int, world: int) -> Shown:
    """Each rank begins with 10 times its number, or with one number for everybody."""
    one = torch.tensor([10.0 * rank])
    many = 10.0 * rank + torch.arange(float(world))
    shown = Shown()

    def note(name: str, before: Tensor | None, after: Tensor | None) -> None:
        shown[name] = _said(before), _said(after)

    note("broadcast from rank 0", one, _broadcast(one.clone()))
    note("scatter from rank 0", many if rank == 0 else None, _scatter(many, rank, world))
    note("gather to rank 0", one, _gather(one, rank, world))
    note("all-gather", one, _all_gather(one, world))
    note("reduce to rank 0", one, _reduce(one.clone(), rank))
    note("all-reduce", one, _all_reduce(one.clone()))
    note("reduce-scatter", many, _reduce_scatter(many.clone(), world))
    note("all-to-all", many, _all_to_all(many))
    return shown


def _said(x: Tensor | None) -> str:
    return "-" if x is None else " ".join(f"{each:g}" for each in x.tolist())


def _broadcast(x: Tensor) -> Tensor:
    dist.broadcast(x, src=0)
    return x


def _scatter(many: Tensor, rank: int, world: int) -> Tensor:
    mine = torch.empty(1)
    dist.scatter(mine, list(many.split(1)) if rank == 0 else None, src=0)
    return mine


def _gather(one: Tensor, rank: int, world: int) -> Tensor | None:
    found = [torch.empty(1) for _ in range(world)] if rank == 0 else None
    dist.gather(one, found, dst=0)
    return torch.cat(found) if found else None


def _all_gather(one: Tensor, world: int) -> Tensor:
    found = [torch.empty(1) for _ in range(world)]
    dist.all_gather(found, one)
    return torch.cat(found)


def _reduce(x: Tensor, rank: int) -> Tensor | None:
    dist.reduce(x, dst=0)
    return x if rank == 0 else None  # elsewhere it holds something unspecified


def _all_reduce(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def _reduce_scatter(many: Tensor, world: int) -> Tensor:
    mine = torch.empty(1)
    dist.reduce_scatter(mine, list(many.split(1)))
    return mine


def _all_to_all(many: Tensor) -> Tensor:
    found = torch.empty_like(many)
    dist.all_to_all_single(found, many)
    return found
