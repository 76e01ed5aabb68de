"""Connects a rank's share of a DiT to those of other ranks, as a topology says."""

from __future__ import annotations

from dataclasses import replace

from millstream.core.speed import PLAIN, Speed
from millstream.core.topology import Topology
from millstream.models.dit import CausalDiT
from millstream.models.fast.apply import quicken
from millstream.models.fast.recorded import RecordedStack
from millstream.models.fast.spread import ALONE
from millstream.parallel.balance import Bounds, balance
from millstream.parallel.collectives import RankGroup
from millstream.parallel.fast_sequence import SequenceSpread
from millstream.parallel.fast_tensor import TensorSpread
from millstream.parallel.groups import Groups, leave_groups
from millstream.parallel.layers import StagedDiT, stage_blocks
from millstream.parallel.mesh_dit import MeshDiT
from millstream.parallel.sequence import SequenceDiT, SharedHeadsDiT
from millstream.parallel.tensor import connect_tensors


def connect(
    dit: CausalDiT,
    topology: Topology,
    groups: Groups,
    *,
    bounds: Bounds,
    speed: Speed = PLAIN,
    spread: TensorSpread | None = None,
) -> CausalDiT | MeshDiT:
    """Return what to call instead of `dit`, which holds this rank's share of its parameters (`share_of`) and
    nothing more. Every rank of the mesh then makes the same calls in the same order, and each gets the whole
    flow.

    `bounds` split the layers of a pipeline. Fast blocks of tensor parallel are spread by `spread`, or by
    collectives.
    """
    if topology.pp > 1:
        dit.blocks = stage_blocks(dit.blocks, bounds, groups.lane.place)
    if speed.blocks:
        return _connect_fast(dit, topology, groups, bounds, _on_ranks(speed, groups.stage), spread)
    if topology.tp > 1:
        connect_tensors(dit, groups.stage)
    if topology.pp > 1:
        return StagedDiT(dit, groups, bounds)
    if topology.sp > 1:
        return SequenceDiT(dit, groups.stage)
    return MeshDiT(dit, groups.stage) if topology.tp > 1 else dit


def disconnect(dit: CausalDiT | MeshDiT, groups: Groups) -> None:
    """Undo `connect`, at the end: drop what was recorded, and then leave the groups."""
    blocks = dit.dit.blocks if isinstance(dit, MeshDiT) else dit.blocks
    if isinstance(blocks, RecordedStack):
        blocks.forget_recordings()
    leave_groups(groups)


def _connect_fast(
    dit: CausalDiT,
    topology: Topology,
    groups: Groups,
    bounds: Bounds,
    speed: Speed,
    spread: TensorSpread | None,
) -> CausalDiT | MeshDiT:
    if topology.sp > 1:
        return SharedHeadsDiT(quicken(dit, speed, SequenceSpread(groups.stage)), groups.stage)
    quicken(dit, speed, (spread or TensorSpread(groups.stage)) if topology.tp > 1 else ALONE)
    if topology.pp > 1:
        return StagedDiT(dit, groups, bounds)
    return MeshDiT(dit, groups.stage) if topology.tp > 1 else dit


def _on_ranks(speed: Speed, stage: RankGroup) -> Speed:
    """Return what a rank can do of `speed`: a graph holds no call that passes through host memory."""
    return replace(speed, graphs=False) if stage.size > 1 and stage.through_host else speed


def even_bounds(layers: int, stages: int) -> Bounds:
    """Return the split for stages that are equally quick and have nothing else to do."""
    return balance([1.0] * layers, stages)
