"""From one matmul's q, k and v to rotated queries and a filled ring: norms, rotary phases and the write in
one pass.

Triton on a GPU, plain torch elsewhere. Queries leave in their dtype, or packed for attention in 8 bits. Knows
slots as a list of places; which frames they are is the ring's business. Where somebody else has the other
heads, the sums of squares that a norm is made of come from outside.
Shapes: B batch, L chunk tokens, D width, N heads, H head width, W places in the ring.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.ops.backend import runs_kernels
from millstream.ops.norms import rms_norm
from millstream.ops.quantised_kv import PackedQueries
from millstream.ops.rope import Phases, rotate


def write_ring(
    qkv_BLX: Tensor,
    weight_q_D: Tensor,
    weight_k_D: Tensor,
    phases: Phases,
    index_L: Tensor,
    k_BWNH: Tensor,
    v_BWNH: Tensor,
    *,
    eps: float,
    packs: bool = False,
    means_2BL: Tensor | None = None,
) -> Tensor | PackedQueries:
    """Rotated queries [B, L, N, H], packed if so asked; keys (normed, rotated) and values go to `index` of
    the ring. `qkv` is [B, L, 3D]. `means` are the mean squares of q and of k over all heads, if these are not
    all."""
    if runs_kernels(qkv_BLX):
        from millstream.ops.kernels.ring_write import launch_write_ring

        return launch_write_ring(
            qkv_BLX,
            weight_q_D,
            weight_k_D,
            phases,
            index_L,
            k_BWNH,
            v_BWNH,
            eps=eps,
            packs=packs,
            means_2BL=means_2BL,
        )
    q_BLD, k_BLD, v_BLD = qkv_BLX.chunk(3, dim=-1)
    heads = k_BWNH.shape[-2]
    (means_q, means_k) = (None, None) if means_2BL is None else means_2BL
    q, k = (
        rotate(_normed(x.float(), weight.float(), eps, means).unflatten(-1, (heads, -1)), phases)
        for x, weight, means in ((q_BLD, weight_q_D, means_q), (k_BLD, weight_k_D, means_k))
    )
    k_BWNH.index_copy_(1, index_L, k.to(k_BWNH.dtype))
    v_BWNH.index_copy_(1, index_L, v_BLD.unflatten(-1, (heads, -1)))
    return PackedQueries.of(q) if packs else q.to(qkv_BLX.dtype)


def turn_heads(
    qkv_LX: Tensor, weight_q_D: Tensor, weight_k_D: Tensor, phases: Phases, parts: int, *, eps: float
) -> Tensor:
    """q and k as they would go into a ring, and v, of each of so many parts of the heads: [parts, L, 3, N /
    parts, H]."""
    if runs_kernels(qkv_LX):
        from millstream.ops.kernels.ring_write import launch_turn_heads

        return launch_turn_heads(qkv_LX, weight_q_D, weight_k_D, phases, parts, eps=eps)
    q_LD, k_LD, v_LD = qkv_LX.chunk(3, dim=-1)
    head = 2 * phases.cos.shape[-1]
    q, k = (
        rotate(rms_norm(x.float(), weight.float(), eps).unflatten(-1, (-1, head)), phases).to(qkv_LX.dtype)
        for x, weight in ((q_LD, weight_q_D), (k_LD, weight_k_D))
    )
    heads_L3NH = torch.stack((q, k, v_LD.unflatten(-1, (-1, head))), dim=1)
    return heads_L3NH.unflatten(2, (parts, -1)).movedim(2, 0).contiguous()


def put_heads(heads_L3NH: Tensor, index_L: Tensor, k_WNH: Tensor, v_WNH: Tensor) -> None:
    """Write keys and values that were turned elsewhere to `index` of the ring."""
    if runs_kernels(heads_L3NH):
        from millstream.ops.kernels.ring_write import launch_put_heads

        launch_put_heads(heads_L3NH, index_L, k_WNH, v_WNH)
        return
    _, k_LNH, v_LNH = heads_L3NH.unbind(1)
    k_WNH.index_copy_(0, index_L, k_LNH)
    v_WNH.index_copy_(0, index_L, v_LNH)


def mean_squares(qkv_LX: Tensor, width: int) -> Tensor:
    """Return what these heads add to the mean squares of q and of k over all heads of `width`, [2, L] in
    float32."""
    if runs_kernels(qkv_LX):
        from millstream.ops.kernels.ring_write import launch_mean_squares

        return launch_mean_squares(qkv_LX, width)
    return torch.stack([x.float().square().sum(-1) / width for x in qkv_LX.chunk(3, dim=-1)[:2]])


def _normed(x_BLD: Tensor, weight_D: Tensor, eps: float, means_BL: Tensor | None) -> Tensor:
    if means_BL is None:
        return rms_norm(x_BLD, weight_D, eps)
    return x_BLD * (means_BL[..., None] + eps).rsqrt() * weight_D
