"""Scaled dot-product attention: one signature, backends in the order that measured fastest.

On CUDA cuDNN comes first: at the shapes of a chunk over its window it reaches 1.6 times the flash backend.
Shapes: B batch, L queries, W keys, N heads, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

_ORDER = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(q_BLNH: Tensor, k_BWNH: Tensor, v_BWNH: Tensor, bias: Tensor | None = None) -> Tensor:
    """Full attention. `bias` is added to the scores (or masks them, if boolean) and broadcasts to [B, N, L, W]."""
    q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BWNH, v_BWNH))
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
    with sdpa_kernel(_ORDER, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


def attend_with_sum(q_BLNH: Tensor, k_BWNH: Tensor, v_BWNH: Tensor) -> tuple[Tensor, Tensor]:
    """Full attention, and the logarithm of each query's sum of exponentials, [B, N, L] in float32.

    Without cuDNN the scores are written out: for tests, not for speed.
    """
    q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BWNH, v_BWNH))
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, False, False)
        return out.transpose(1, 2), lse.reshape(q.shape[:3])
    scores = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    return (scores.softmax(-1) @ v.float()).to(q.dtype).transpose(1, 2), scores.logsumexp(-1)
