"""Scaled dot-product attention: one signature, backends in the order that measured fastest.

On CUDA cuDNN comes first: at the shapes of a chunk over its window it reaches 1.6 times the flash backend.
Shapes: B batch, L queries, W keys, N heads, H head width, D = N * H, P parts of the keys.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from millstream.ops.waves import Waves

_ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]

HALF = (torch.bfloat16, torch.float16)
KEY_MULTIPLE = 128
"""Attention on a GPU is faster over a number of keys that is a multiple of this."""


class AttentionShare(NamedTuple):
    """Attention's output for some of a call's queries, for each part of the keys separately."""

    out_PBLD: Tensor
    lse_PBNL: Tensor | None
    """Logarithm of each part's sum of exponentials, in float32; None where it is not needed."""


def attend(q_BLNH: Tensor, k_BWNH: Tensor, v_BWNH: Tensor, bias: Tensor | None = None) -> Tensor:
    """Full attention. `bias` is added to the scores (or masks them, if boolean) and broadcasts to [B, N, L,
    W]."""
    q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BWNH, v_BWNH))
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
    with sdpa_kernel(_ORDER, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


def chosen_backend(heads: int, head_width: int, *, device: torch.device, dtype: torch.dtype) -> str:
    """Return the name of the backend that `attend` uses for such heads on this device."""
    x_BNLH = torch.zeros(1, heads, 2, head_width, device=device, dtype=dtype)
    with sdpa_kernel(_ORDER, set_priority=True) if x_BNLH.is_cuda else nullcontext():
        chosen = SDPBackend(torch._fused_sdp_choice(x_BNLH, x_BNLH, x_BNLH))
    return chosen.name.removesuffix("_ATTENTION").lower()


def attend_with_sum(q_BLNH: Tensor, k_BWNH: Tensor, v_BWNH: Tensor) -> tuple[Tensor, Tensor]:
    """Full attention, and the logarithm of each query's sum of exponentials, [B, N, L] in float32.

    Without cuDNN the scores are written out: for tests, not for speed.
    """
    q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BWNH, v_BWNH))
    if q.is_cuda and q.dtype in HALF:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, False, False
        )
        return out.transpose(1, 2), lse.reshape(q.shape[:3])
    scores = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    return (scores.softmax(-1) @ v.float()).to(q.dtype).transpose(1, 2), scores.logsumexp(-1)


def attend_back(
    dout_BLNH: Tensor, q_BLNH: Tensor, k_BWNH: Tensor, v_BWNH: Tensor, out_BLNH: Tensor, lse_BNL: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, from what `attend_with_sum` gave and the gradient of it."""
    dout, q, k, v, out = (x.transpose(1, 2) for x in (dout_BLNH, q_BLNH, k_BWNH, v_BWNH, out_BLNH))
    if q.is_cuda and q.dtype in HALF:
        nothing = torch.empty((), dtype=torch.int64, device=q.device)
        scores = (q.shape[-2], k.shape[-2])
        made = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            dout, q, k, v, out, lse_BNL[..., None], nothing, nothing, None, None, None, *scores, 0.0, False
        )
        dq, dk, dv = (x.transpose(1, 2) for x in made)
        return dq, dk, dv
    scale = q.shape[-1] ** -0.5
    weights = torch.exp(q.float() @ k.float().transpose(-1, -2) * scale - lse_BNL[..., None])
    of_out = (dout.float() * out.float()).sum(-1, keepdim=True)
    of_scores = weights * (dout.float() @ v.float().transpose(-1, -2) - of_out) * scale
    made = (
        of_scores @ k.float(),
        of_scores.transpose(-1, -2) @ q.float(),
        weights.transpose(-1, -2) @ dout.float(),
    )
    dq, dk, dv = (x.to(q.dtype).transpose(1, 2) for x in made)
    return dq, dk, dv


def attend_in_shares(
    q_BLNH: Tensor, k_BWNH: Tensor, v_BWNH: Tensor, waves: Waves | None
) -> list[AttentionShare]:
    """Attend, and return shares for consecutive runs of the queries. With `waves`, for a single row, as these
    say."""
    if waves is None:
        out, lse = attend_with_sum(q_BLNH, k_BWNH, v_BWNH)
        return [AttentionShare(out.flatten(2)[None], lse[None])]
    assert len(q_BLNH) == 1, f"waves are of a single row, got {len(q_BLNH)}"
    assert k_BWNH.shape[1] % waves.parts == 0, f"{k_BWNH.shape[1]} keys do not make {waves.parts} parts"
    whole = q_BLNH[:, : waves.queries]
    rest = q_BLNH[:, waves.queries :]
    k_PWNH, v_PWNH = (x[0].unflatten(0, (waves.parts, -1)) for x in (k_BWNH, v_BWNH))
    out, lse = attend_with_sum(rest.expand(waves.parts, -1, -1, -1), k_PWNH, v_PWNH)
    return [
        *attend_in_shares(whole, k_BWNH, v_BWNH, None),
        AttentionShare(out.flatten(2)[:, None], lse[:, None]),
    ]
