"""From as much of a DiT as is a rank's to what that rank calls, as a topology says."""

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
from millstream.parallel.overlapped import overlap_exchange
from millstream.parallel.peer_memory import PeerMemory
from millstream.parallel.sequence import SequenceDiT, SharedHeadsDiT
from millstream.parallel.tensor import connect_tensors


def connect(
    dit: CausalDiT,
    topology: Topology,
    groups: Groups,
    *,
    bounds: Bounds,
    head_groups: int = 1,
    speed: Speed = PLAIN,
    peers: PeerMemory | None = None,
) -> CausalDiT | MeshDiT:
    """What to call instead of `dit`, which holds this rank's share of its parameters (`share_of`) and nothing more. Every rank
    of the mesh then makes the same calls in the same order, and every one gets the whole flow.

    `bounds` split the layers of a pipeline. Sequence parallel exchanges heads in `head_groups`, one while the next is
    projected; fast blocks, whose q, k and v are one product, exchange them at once. Those of tensor parallel sum and collect in
    the memory of their `peers`, where there is any.
    """
    if topology.pp > 1:
        dit.blocks = stage_blocks(dit.blocks, bounds, groups.lane.place)
    if speed.blocks:
        return _connect_fast(dit, topology, groups, bounds, _on_ranks(speed, groups.stage), peers)
    if topology.sp > 1 and head_groups > 1:
        overlap_exchange(dit, groups.stage, head_groups)
    if topology.tp > 1:
        connect_tensors(dit, groups.stage)
    if topology.pp > 1:
        return StagedDiT(dit, groups, bounds)
    if topology.sp > 1:
        return SequenceDiT(dit, groups.stage)
    return MeshDiT(dit, groups.stage) if topology.tp > 1 else dit


def disconnect(dit: CausalDiT | MeshDiT, groups: Groups) -> None:
    """The opposite, at the end: what was recorded is forgotten, and then the groups are left."""
    blocks = dit.dit.blocks if isinstance(dit, MeshDiT) else dit.blocks
    if isinstance(blocks, RecordedStack):
        blocks.forget_recordings()
    leave_groups(groups)


def _connect_fast(
    dit: CausalDiT, topology: Topology, groups: Groups, bounds: Bounds, speed: Speed, peers: PeerMemory | None
) -> CausalDiT | MeshDiT:
    if topology.sp > 1:
        return SharedHeadsDiT(quicken(dit, speed, SequenceSpread(groups.stage)), groups.stage)
    quicken(dit, speed, TensorSpread(groups.stage, peers) if topology.tp > 1 else ALONE)
    if topology.pp > 1:
        return StagedDiT(dit, groups, bounds)
    return MeshDiT(dit, groups.stage) if topology.tp > 1 else dit


def _on_ranks(speed: Speed, stage: RankGroup) -> Speed:
    """What of it a rank can do: a graph holds no call that passes through host memory."""
    return replace(speed, graphs=False) if stage.size > 1 and stage.through_host else speed


def even_bounds(layers: int, stages: int) -> Bounds:
    """For stages that are equally quick and have nothing else to do."""
    return balance([1.0] * layers, stages)
