"""From as much of a DiT as is a rank's to what that rank calls, as a topology says."""

from __future__ import annotations

from millstream.core.topology import Topology
from millstream.models.dit import CausalDiT
from millstream.parallel.balance import Bounds, balance
from millstream.parallel.groups import Groups
from millstream.parallel.layers import StagedDiT, stage_blocks
from millstream.parallel.mesh_dit import MeshDiT
from millstream.parallel.overlapped import overlap_exchange
from millstream.parallel.sequence import SequenceDiT
from millstream.parallel.tensor import connect_tensors


def connect(dit: CausalDiT, topology: Topology, groups: Groups, *, bounds: Bounds, head_groups: int = 1) -> CausalDiT | MeshDiT:
    """What to call instead of `dit`, which holds this rank's share of its parameters (`share_of`) and nothing more. Every rank
    of the mesh then makes the same calls in the same order, and every one gets the whole flow.

    `bounds` split the layers of a pipeline. Sequence parallel exchanges heads in `head_groups`, one while the next is
    projected.
    """
    if topology.sp > 1 and head_groups > 1:
        overlap_exchange(dit, groups.stage, head_groups)
    if topology.pp > 1:
        dit.blocks = stage_blocks(dit.blocks, bounds, groups.lane.place)
    if topology.tp > 1:
        connect_tensors(dit, groups.stage)
    if topology.pp > 1:
        return StagedDiT(dit, groups, bounds)
    if topology.sp > 1:
        return SequenceDiT(dit, groups.stage)
    return MeshDiT(dit, groups.stage) if topology.tp > 1 else dit


def even_bounds(layers: int, stages: int) -> Bounds:
    """For stages that are equally quick and have nothing else to do."""
    return balance([1.0] * layers, stages)
