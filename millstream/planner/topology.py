"""Every topology worth a plan. What they are, and what a model allows, is in `core/topology.py`; what they cost elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.core.config import DiTConfig
from millstream.core.topology import MAX_MESH, Topology, divisors


def topologies(dit: DiTConfig, devices: int) -> Iterator[Topology]:
    """Those of at most `devices` devices, small ones first."""
    mesh_limit = min(devices, MAX_MESH)
    meshes = [(tp, 1, pp) for tp in divisors(dit, "tp") for pp in _stages(dit) if tp * pp <= mesh_limit]
    meshes += [(1, sp, 1) for sp in divisors(dit, "sp") if 1 < sp <= mesh_limit]
    every = [Topology(tp=tp, sp=sp, pp=pp, front_apart=apart) for tp, sp, pp in meshes for apart in (False, True)]
    yield from sorted((each for each in every if each.num_devices <= devices), key=lambda each: each.num_devices)


def _stages(dit: DiTConfig) -> list[int]:
    return [stages for stages in (1, 2, 3, 4, 6, 8) if stages <= dit.layers]
