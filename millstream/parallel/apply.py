"""From a whole DiT to this rank's share of it, as a topology says."""

from __future__ import annotations

from millstream.core.topology import Topology
from millstream.models.dit import CausalDiT
from millstream.parallel.groups import Groups
from millstream.parallel.mesh_dit import MeshDiT
from millstream.parallel.sequence import SequenceDiT
from millstream.parallel.tensor import split_tensors


def parallelise(dit: CausalDiT, topology: Topology, groups: Groups) -> CausalDiT | MeshDiT:
    """What to call instead of `dit`, which is taken apart. Every rank of the mesh then makes the same calls in the same order,
    and every one gets the whole flow."""
    topology.check(dit.config)
    if topology.mesh_size == 1:
        return dit
    if topology.sp > 1:
        return SequenceDiT(dit, groups.stage)
    if topology.tp > 1:
        split_tensors(dit, groups.stage)
    return MeshDiT(dit, groups.stage)
