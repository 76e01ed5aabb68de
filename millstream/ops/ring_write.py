"""From one product's q, k and v to rotated queries and a filled ring: norms, rotary phases and the write in one pass.

Triton on a GPU, plain torch elsewhere. Queries leave in their dtype, or packed for attention in 8 bits. Knows slots as a list
of places; which frames they are is the ring's business.
Shapes: L chunk tokens, D width, N heads, H head width, W places in the ring.
"""

from __future__ import annotations

from torch import Tensor

from millstream.ops.backend import runs_kernels
from millstream.ops.norms import rms_norm
from millstream.ops.packed import PackedQueries
from millstream.ops.rope import Phases, rotate


def write_ring(
    qkv_LX: Tensor,
    weight_q_D: Tensor,
    weight_k_D: Tensor,
    phases: Phases,
    index_L: Tensor,
    k_WNH: Tensor,
    v_WNH: Tensor,
    *,
    eps: float,
    packs: bool = False,
) -> Tensor | PackedQueries:
    """Rotated queries [L, N, H], packed if so asked; keys (normed, rotated) and values go to `index` of the ring. `qkv` is
    [L, 3D]."""
    if runs_kernels(qkv_LX):
        from millstream.ops.kernels.ring_write import launch_write_ring

        return launch_write_ring(qkv_LX, weight_q_D, weight_k_D, phases, index_L, k_WNH, v_WNH, eps=eps, packs=packs)
    q_LD, k_LD, v_LD = qkv_LX.chunk(3, dim=-1)
    heads = k_WNH.shape[-2]
    q, k = (
        rotate(rms_norm(x.float(), weight.float(), eps).unflatten(-1, (heads, -1)), phases)
        for x, weight in ((q_LD, weight_q_D), (k_LD, weight_k_D))
    )
    k_WNH.index_copy_(0, index_L, k.to(k_WNH.dtype))
    v_WNH.index_copy_(0, index_L, v_LD.unflatten(-1, (heads, -1)))
    return PackedQueries.of(q) if packs else q.to(qkv_LX.dtype)
