"""From a whole DiT to this rank's share of it, as a topology says."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from millstream.core.topology import Topology
from millstream.models.dit import CausalDiT
from millstream.parallel.balance import balance
from millstream.parallel.groups import Groups
from millstream.parallel.layers import StagedDiT, stage_blocks
from millstream.parallel.mesh_dit import MeshDiT
from millstream.parallel.overlapped import overlap_exchange
from millstream.parallel.sequence import SequenceDiT
from millstream.parallel.tensor import split_tensors


def parallelise(
    dit: CausalDiT,
    topology: Topology,
    groups: Groups,
    *,
    device: torch.device | None = None,
    other_work: Sequence[float] = (),
    head_groups: int = 1,
) -> CausalDiT | MeshDiT:
    """What to call instead of `dit`, which is taken apart. Every rank of the mesh then makes the same calls in the same order,
    and every one gets the whole flow.

    `device` is where this rank's share goes: a model that fits no device whole is loaded into host memory and given to devices
    from there. `other_work` is what each stage of a pipeline has to do besides its layers, such as decoding, in units of one
    layer's time. Sequence parallel exchanges heads in `head_groups`, one while the next is projected.
    """
    topology.check(dit.config)
    if topology.sp > 1 and head_groups > 1:
        overlap_exchange(dit, groups.stage, head_groups)
    if topology.tp > 1:
        split_tensors(dit, groups.stage)
    if topology.pp > 1:
        bounds = balance([1.0] * len(dit.blocks), topology.pp, other_work=other_work)
        dit.blocks = stage_blocks(dit.blocks, bounds, groups.lane.place)
    if device is not None:
        dit.to(device)
    if topology.pp > 1:
        return StagedDiT(dit, groups, bounds)
    if topology.sp > 1:
        return SequenceDiT(dit, groups.stage)
    return MeshDiT(dit, groups.stage) if topology.tp > 1 else dit
