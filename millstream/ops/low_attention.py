"""Attention below bf16: queries and keys in int8, probabilities and values in e4m3, sums in float32.

Triton on a GPU, plain torch elsewhere, which goes over the same tiles and rounds where the kernel does: what
the rounding costs can be looked at without a GPU.
Shapes: B batch, L queries, W places of keys, N heads, H head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from millstream.ops.backend import runs_kernels
from millstream.ops.fp8 import E4M3
from millstream.ops.quantised_kv import LIFT, TILE, PackedQueries, QuantisedKV

HEAD_WIDTHS = (32, 64, 128)
"""Widths of heads that the kernel supports."""


def attend_packed(q_BLNH: PackedQueries, packed: QuantisedKV, keys: int, *, dtype: torch.dtype) -> Tensor:
    """Full attention to the first `keys` places of `packed`, a row for each of the batch: [B, L, N, H] of
    `dtype`."""
    if runs_kernels(q_BLNH.numbers):
        from millstream.ops.kernels.low_attention import launch_attend_packed

        return launch_attend_packed(q_BLNH, packed, keys, dtype=dtype)
    assert 0 < keys <= packed.k_RWNH.shape[1], f"{keys} keys of {packed.k_RWNH.shape[1]}"
    q_BNLH = q_BLNH.numbers.float().transpose(1, 2)
    row_scales_BNL = q_BLNH.scales.transpose(1, 2) * (math.log2(math.e) * q_BNLH.shape[-1] ** -0.5)
    sums = torch.zeros_like(q_BNLH)
    total = torch.zeros_like(row_scales_BNL)
    top = torch.full_like(row_scales_BNL, -1e30)
    for tile in range(-(-keys // TILE)):
        part = slice(tile * TILE, min((tile + 1) * TILE, keys))
        scales_BN1 = packed.k_scales_RNT[..., tile, None]
        scores = (
            q_BNLH
            @ packed.k_RWNH[:, part].float().permute(0, 2, 3, 1)
            * (row_scales_BNL * scales_BN1)[..., None]
        )
        new = torch.maximum(top, scores.amax(-1) - LIFT)
        probabilities = torch.exp2(scores - new[..., None])
        fade = torch.exp2(top - new)
        v_BNWH = (
            packed.vt_RNHW[..., part].float().transpose(2, 3) * packed.v_scales_RNT[..., tile, None, None]
        )
        sums = sums * fade[..., None] + probabilities.to(E4M3).float() @ v_BNWH
        total = total * fade + probabilities.sum(-1)
        top = new
    return (sums / total[..., None] + packed.v_mean_RNH[:, :, None]).to(dtype).transpose(1, 2).contiguous()
