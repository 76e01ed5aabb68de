"""Groups of a training plan's ranks. Every rank makes every group here, in this order, whether it is in it or
not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from millstream.parallel.collective_calls import CollectiveRecord
from millstream.parallel.collectives import RankGroup
from millstream.train.parallel.gradients import GradientGroup
from millstream.train.parallel.plan import ParallelPlan, RankPlace

AXES = ("pp", "replicate", "shard", "tp")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingGroups:
    place: RankPlace
    mesh: DeviceMesh | None
    """Device mesh along `AXES`, for torch's own strategies; None for one process."""
    batch: RankGroup
    """Ranks with the same parameters and other rows or tokens: their gradients are averaged."""
    tensor: GradientGroup
    context: GradientGroup
    model: RankGroup
    """Ranks with the same rows, which together have every parameter."""
    pipe: RankGroup
    everybody: RankGroup
    writers: RankGroup
    """All ranks again, in host memory, for what is written while steps go on: it must not come between their
    collectives."""


def create_training_groups(
    plan: ParallelPlan, device: torch.device, *, first: int | None = None
) -> TrainingGroups:
    """Create the groups. Needs an initialised process group of the plan's ranks, unless the plan is for one
    rank. With `first` the plan's ranks are those from this one on, in a larger world; the other ranks make
    the groups too, and get groups that they are not in."""
    if first is None:
        plan.check_ranks(dist.get_world_size() if dist.is_initialized() else 1)
    rank = dist.get_rank() if dist.is_initialized() else 0
    begin = first or 0
    places = [plan.place_of(each) for each in range(plan.world_size)]
    is_here = begin <= rank < begin + plan.world_size
    here = places[rank - begin if is_here else 0]
    record = CollectiveRecord()

    def made(kind: type[RankGroup], name: str, *along: str, backend: str | None = None) -> RankGroup:
        """Make the group of the ranks that differ from this one along these axes alone."""
        found = None
        for along_them in _apart(places, along):
            ranks = tuple(begin + each for each in along_them)
            handle = dist.new_group(list(ranks), backend=backend) if len(ranks) > 1 else None
            if rank in ranks or not is_here:
                through_host = (
                    rank in ranks
                    and handle is not None
                    and "nccl" not in str(dist.get_backend_config(handle))
                )
                found = kind(
                    name, "training", ranks, rank, handle if rank in ranks else None, record, through_host
                )
        assert found is not None, f"rank {rank} is in no group {name}"
        return found

    tensor = made(GradientGroup, "tensor", "tp")
    context = made(GradientGroup, "context", "cp")
    assert isinstance(tensor, GradientGroup), f"blocks learn through a {type(tensor)}"
    assert isinstance(context, GradientGroup), f"tokens are exchanged through a {type(context)}"
    return TrainingGroups(
        place=here,
        mesh=_mesh(plan, device, begin) if plan.world_size > 1 else None,
        batch=made(RankGroup, "batch", "dp", "cp"),
        tensor=tensor,
        context=context,
        model=made(RankGroup, "model", "pp", "tp"),
        pipe=made(RankGroup, "pipe", "pp"),
        everybody=made(RankGroup, "everybody", *RankPlace._fields),
        writers=made(RankGroup, "writers", *RankPlace._fields, backend="gloo"),
    )


def _apart(places: list[RankPlace], along: tuple[str, ...]) -> Iterable[tuple[int, ...]]:
    """Return the ranks in groups whose members differ along these axes and no others."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places):
        fixed = tuple(value for axis, value in place._asdict().items() if axis not in along)
        groups.setdefault(fixed, []).append(rank)
    return map(tuple, groups.values())


def create_world() -> RankGroup:
    """Create a group of all ranks, whatever they hold."""
    ranks = tuple(range(dist.get_world_size()))
    handle = dist.new_group(None)
    through_host = "nccl" not in str(dist.get_backend_config(handle))
    return RankGroup("world", "training", ranks, dist.get_rank(), handle, CollectiveRecord(), through_host)


def _mesh(plan: ParallelPlan, device: torch.device, begin: int) -> DeviceMesh:
    """Return the device mesh. A copy of the model is sharded over all ranks that have parts of its batch,
    including the context's, or within groups that repeat it."""
    shards = plan.cp * (plan.shards or plan.dp)
    ranks = torch.arange(begin, begin + plan.world_size).view(plan.pp, -1, shards, plan.tp)
    return DeviceMesh(device.type, ranks, mesh_dim_names=AXES)
