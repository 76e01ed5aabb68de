"""A whole DiT taken apart for a rank of a mesh; ranks that serve load their share alone."""

from __future__ import annotations

from millstream.core.speed import PLAIN, Speed
from millstream.core.topology import Topology
from millstream.experiments.exchange_groups import overlap_exchange
from millstream.experiments.peer_memory import PeerMemory, PeerTensorSpread
from millstream.models.dit import CausalDiT
from millstream.parallel.apply import connect, even_bounds
from millstream.parallel.groups import Groups
from millstream.parallel.mesh_dit import MeshDiT
from millstream.parallel.shares import keep_share, share_of


def parallelise(
    dit: CausalDiT,
    topology: Topology,
    groups: Groups,
    *,
    exchange_groups: int = 1,
    speed: Speed = PLAIN,
    peers: PeerMemory | None = None,
) -> CausalDiT | MeshDiT:
    """What to call instead of `dit`."""
    topology.check(dit.config, exchange_groups=exchange_groups)
    bounds = even_bounds(len(dit.blocks), topology.pp)
    keep_share(dit, share_of(topology, groups.mesh.rank, bounds))
    if exchange_groups > 1:
        overlap_exchange(dit, groups.stage, exchange_groups)
    spread = None if peers is None else PeerTensorSpread(groups.stage, peers)
    return connect(dit, topology, groups, bounds=bounds, speed=speed, spread=spread)
