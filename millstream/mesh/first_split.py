"""The first split of a pipeline's layers. Every rank measures itself, the front says what it takes of the
leader's device, and all come to the same bounds, before any weights are read: a rank then reads what it
keeps.

It holds while chunks run, unless blocks may change stages (`experiments/rebalance.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import torch

from millstream.core.config import ModelSpec
from millstream.core.topology import FRONT, Topology
from millstream.mesh.config import MeshConfig
from millstream.mesh.rendezvous import Rendezvous
from millstream.models.carry import VAE
from millstream.parallel.apply import even_bounds
from millstream.parallel.balance import Bounds, better_split
from millstream.parallel.measure import CallCosts, measure_call, quickest

COSTS = "costs"
FRONT_WORK = "front work"


def first_split(
    config: MeshConfig,
    spec: ModelSpec,
    rank: int,
    rendezvous: Rendezvous,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Bounds:
    """Return which layers are on which stage. Where there are stages, every rank of the mesh calls this."""
    topology = config.topology
    if topology.pp == 1:
        return 0, spec.dit.layers
    rendezvous.post(f"{COSTS}/{rank}", asdict(measure_call(spec, device=device, dtype=dtype)))
    found = rendezvous.collect(COSTS, topology.mesh_ranks, timeout_s=config.limits.start_s)
    front = rendezvous.collect(FRONT_WORK, [FRONT], timeout_s=config.limits.start_s)
    return split_by(
        spec.dit.layers, topology, {each: CallCosts(**said) for each, said in found.items()}, front[FRONT]
    )


@torch.inference_mode()
def pictures_s(vae: VAE, spec: ModelSpec, *, device: torch.device, dtype: torch.dtype) -> float:
    """Seconds that a chunk's frames take, for every model call of it."""
    stream = spec.stream
    latents = torch.zeros(
        1, stream.frames_per_chunk, spec.dit.channels, *stream.latent_size, device=device, dtype=dtype
    )
    _, state = vae.decode(latents)
    return quickest(lambda: vae.decode(latents, state), device) / (len(stream.steps) + 1)


def split_by(layers: int, topology: Topology, costs: Mapping[int, CallCosts], front_s: float) -> Bounds:
    """The even split, unless another one makes the slowest stage notably quicker. `front_s` is what the front
    takes of the first stage's device for every model call."""
    assert front_s >= 0, f"the front takes {front_s} s of the leader's device"
    slowness = []
    other_work = []
    for stage in range(topology.pp):
        ranks = [costs[rank] for rank in topology.stage_ranks(stage)]
        slowness.append(max(rank.block_s for rank in ranks) / topology.tp)
        other_work.append(max(rank.embed_s for rank in ranks))
    other_work[0] += front_s
    other_work[-1] += max(costs[rank].head_s for rank in topology.stage_ranks(topology.pp - 1))
    even = even_bounds(layers, topology.pp)
    return better_split(even, slowness=slowness, other_work=other_work) or even
