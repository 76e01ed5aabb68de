"""FSDP2 applied to a DiT: each block is collected when its turn comes, as in `zero.py`; torch overlaps and
prefetches besides.

With two axes (HSDP) a copy is sharded along the second and repeated along the first.
"""

from __future__ import annotations

import warnings

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from millstream.models.dit import CausalDiT
from millstream.models.prompted import PromptedDiT
from millstream.models.weights.unread import bring


def shard_fully(
    model: PromptedDiT,
    dit: CausalDiT,
    mesh: DeviceMesh,
    *,
    reshards: bool = True,
    compute: torch.dtype | None = None,
    offloads: bool = False,
) -> None:
    """In place. `reshards` lets go of a block's weights between its forward and backward pass; `compute` is
    what matmuls are made in, over float32 weights; `offloads` keeps weights, gradients and optimiser in host
    memory."""
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32 if compute else None)
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offloads else OffloadPolicy()

    def shard(*modules: torch.nn.Module) -> None:
        fully_shard(
            list(modules),
            mesh=mesh,
            reshard_after_forward=reshards,
            mp_policy=precision,
            offload_policy=offload,
        )

    warnings.filterwarnings(
        "ignore", "FSDP2-wrapped module .* returned a view"
    )  # nothing here is changed in place
    for block in dit.blocks:
        bring(block.parameters())  # whole, until it is sharded
        prompt = block.cross_attn
        shard(prompt.k, prompt.norm_k, prompt.v)  # used when the prompt is read, before the block's turn
        shard(block)
    shard(model)
