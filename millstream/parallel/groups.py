"""The groups of a topology's ranks. Every rank makes every group here, in this order, whether it is in it or
not.

`world` is for checks at the start, `mesh` for the leader's broadcasts, `stage` for what the blocks of a stage
sum and exchange, `lane` for activations from one stage to the next, `back` for flows from the last stage to
the others: apart from the lane, so that neither waits for the other's turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from millstream.core.topology import FRONT, LEADER, Topology
from millstream.parallel.collective_calls import CollectiveRecord, Purpose
from millstream.parallel.collectives import RankGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    world: RankGroup
    mesh: RankGroup
    stages: tuple[RankGroup, ...]
    lanes: tuple[RankGroup, ...]
    backs: tuple[RankGroup, ...]
    record: CollectiveRecord
    """Record of this rank's calls on all of these groups."""

    @property
    def stage(self) -> RankGroup:
        """This rank's own group, which it has only if it is of the mesh."""
        return _own(self.stages)

    @property
    def lane(self) -> RankGroup:
        """This rank's own group, which it has only if it is of the mesh."""
        return _own(self.lanes)

    @property
    def back(self) -> RankGroup:
        """This rank's own group, which it has only if it is of the mesh."""
        return _own(self.backs)

    def all_groups(self) -> tuple[RankGroup, ...]:
        return self.world, self.mesh, *self.stages, *self.lanes, *self.backs


def leave_groups(groups: Groups) -> None:
    """Release the communicators, once nothing is under way. Recorded calls over them must be gone by then."""
    for group in groups.all_groups():
        count = len(group.recordings)
        assert not count, (
            f"{count} recorded calls are held over group {group.name}: forget them before it is left"
        )
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    dist.destroy_process_group()


def create_groups(topology: Topology, rank: int = 0, *, timeout_s: float = 60.0) -> Groups:
    """Needs an initialised process group of the mesh's ranks, the front among them or not, except for
    `local`, where every group is this process. The front is in no group but the world, and need not be in
    that.

    A collective that waits longer than `timeout_s` fails on the rank that waits.
    """
    record = CollectiveRecord()
    first = 0 if topology.is_local else topology.world_size - dist.get_world_size()

    def made(name: str, purpose: Purpose, ranks: Sequence[int]) -> RankGroup:
        places = [each - first for each in ranks]
        timeout = timedelta(seconds=timeout_s)
        handle = dist.new_group(places, timeout=timeout) if len(ranks) > 1 else None
        here = handle if rank in ranks else None
        through_host = here is not None and "nccl" not in str(dist.get_backend_config(here))
        return RankGroup(name, purpose, tuple(ranks), rank, here, record, through_host)

    if not topology.is_local:
        assert first in (FRONT, LEADER), (
            f"{topology} has {topology.world_size} ranks, the process group {dist.get_world_size()}"
        )
        assert dist.get_rank() == rank - first, (
            f"rank {rank} is rank {dist.get_rank()} of a process group that begins at {first}"
        )
    return Groups(
        world=made("world", "start-up", range(first, topology.world_size)),
        mesh=made("mesh", "mesh", topology.mesh_ranks),
        stages=tuple(
            made(f"stage{stage}", "mesh", topology.stage_ranks(stage)) for stage in range(topology.pp)
        ),
        lanes=tuple(
            made(f"lane{lane}", "mesh", topology.lane_ranks(lane)) for lane in range(topology.stage_size)
        ),
        backs=tuple(
            made(f"back{lane}", "mesh", topology.lane_ranks(lane)) for lane in range(topology.stage_size)
        ),
        record=record,
    )


def _own(groups: tuple[RankGroup, ...]) -> RankGroup:
    own = [group for group in groups if group.rank in group.ranks]
    assert len(own) == 1, f"rank {groups[0].rank} is in {len(own)} of {[group.name for group in groups]}"
    return own[0]
