"""Triton: q/k norm, rotary phases and the write into the ring. One program does one token's q, k or v.

Shapes as in `ops/ring_write.py`; rows of the ring are contiguous, [W, N * H].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from millstream.ops.fp8 import LEAST_SCALE
from millstream.ops.kernels.quantise_kv import ROUNDS
from millstream.ops.kernels.rows import warps_for
from millstream.ops.quantised_kv import LARGEST_KEY, PackedQueries
from millstream.ops.rope import Phases

_INT8 = tl.constexpr(LARGEST_KEY)
_LEAST_SCALE = tl.constexpr(LEAST_SCALE)


@triton.jit
def _store_packed(
    values, out, scales, row, column, inside, WIDTH: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr
):
    """In int8, with a scale for each head. `values` are zero outside."""
    head = tl.arange(0, BLOCK // HEAD)
    heads = tl.reshape(values, [BLOCK // HEAD, HEAD])
    scale = tl.maximum(tl.max(tl.abs(heads), 1) / _INT8, _LEAST_SCALE)
    whole = (heads * (1.0 / scale)[:, None] + ROUNDS) - ROUNDS
    tl.store(scales + row * (WIDTH // HEAD) + head, scale, mask=head < WIDTH // HEAD)
    tl.store(out + row * WIDTH + column, tl.reshape(whole, [BLOCK]).to(tl.int8), mask=inside)


@triton.jit
def _turned(
    normed, weight_q, weight_k, cos, sin, row, which, column, inside, HEAD: tl.constexpr, BLOCK: tl.constexpr
):
    """A query (0) or a key (1) with its weights and at its place."""
    if which == 0:
        weight = tl.load(weight_q + column, mask=inside, other=0.0).to(tl.float32)
    else:
        weight = tl.load(weight_k + column, mask=inside, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(normed * weight, [BLOCK // 2, 2]))
    pair = tl.arange(0, BLOCK // 2) % (HEAD // 2)
    c = tl.load(cos + row * (HEAD // 2) + pair)
    s = tl.load(sin + row * (HEAD // 2) + pair)
    return tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), [BLOCK])


@triton.jit
def _turn_heads(
    qkv, weight_q, weight_k, cos, sin, out, tokens, eps,
    WIDTH: tl.constexpr, PART: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(qkv + row * 3 * WIDTH + which * WIDTH + column, mask=inside, other=0.0)
    there = out + (((column // PART) * tokens + row) * 3 + which) * PART + column % PART
    if which == 2:
        tl.store(there, x, mask=inside)
    else:
        value = x.to(tl.float32)
        normed = value * tl.rsqrt(tl.sum(value * value) / WIDTH + eps)
        turned = _turned(normed, weight_q, weight_k, cos, sin, row, which, column, inside, HEAD, BLOCK)
        tl.store(there, turned.to(out.dtype.element_ty), mask=inside)


def launch_turn_heads(
    qkv_LX: Tensor, weight_q_D: Tensor, weight_k_D: Tensor, phases: Phases, parts: int, *, eps: float
) -> Tensor:
    tokens = qkv_LX.shape[0]
    width = qkv_LX.shape[1] // 3
    head = 2 * phases.cos.shape[-1]
    assert qkv_LX.is_contiguous(), "the kernel walks rows of 3 * width"
    assert phases.cos.is_contiguous(), "phases are read as rows"
    assert len(phases.cos) == tokens, f"phases {tuple(phases.cos.shape)} of {tokens} tokens"
    out = torch.empty(
        parts, tokens, 3, width // parts // head, head, dtype=qkv_LX.dtype, device=qkv_LX.device
    )
    _turn_heads[(tokens, 3)](
        qkv_LX, weight_q_D, weight_k_D, phases.cos, phases.sin, out, tokens, eps,
        WIDTH=width, PART=width // parts, HEAD=head, BLOCK=triton.next_power_of_2(width),
        num_warps=warps_for(width),
    )  # fmt: skip
    return out


@triton.jit
def _put_heads(heads, index, k_ring, v_ring, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(heads + (row * 3 + 1 + which) * WIDTH + column, mask=inside)
    place = tl.load(index + row).to(tl.int64)
    if which == 0:
        tl.store(k_ring + place * WIDTH + column, x, mask=inside)
    else:
        tl.store(v_ring + place * WIDTH + column, x, mask=inside)


def launch_put_heads(heads_L3NH: Tensor, index_L: Tensor, k_WNH: Tensor, v_WNH: Tensor) -> None:
    tokens, _, heads, head = heads_L3NH.shape
    assert heads_L3NH.is_contiguous(), "the kernel walks rows of q, k and v"
    _refuse_gaps(k_WNH, v_WNH, heads * head)
    _put_heads[(tokens, 2)](
        heads_L3NH, index_L, k_WNH, v_WNH,
        WIDTH=heads * head, BLOCK=triton.next_power_of_2(heads * head), num_warps=warps_for(heads * head),
    )  # fmt: skip


def _refuse_gaps(k_WNH: Tensor, v_WNH: Tensor, width: int) -> None:
    for ring in (k_WNH, v_WNH):
        strides = (width, ring.shape[-1], 1)
        assert ring.stride()[-3:] == strides, f"ring rows must be contiguous, got strides {ring.stride()}"


@triton.jit
def _write_ring(
    qkv, weight_q, weight_k, cos, sin, index, q_out, q_scales, k_rings, v_rings, means, tokens, rows, apart,
    eps, WIDTH: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, PACKS: tl.constexpr,
    GIVEN: tl.constexpr,
):  # fmt: skip
    """Rings lie `apart`; each is written at the same places."""
    row = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)
    token = row % tokens
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(qkv + row * 3 * WIDTH + which * WIDTH + column, mask=inside, other=0.0)
    there = row // tokens * apart + tl.load(index + token).to(tl.int64) * WIDTH + column
    if which == 2:
        tl.store(v_rings + there, x, mask=inside)
    else:
        value = x.to(tl.float32)
        mean = tl.load(means + which * rows + row) if GIVEN else tl.sum(value * value) / WIDTH
        turned = _turned(
            value * tl.rsqrt(mean + eps),
            weight_q,
            weight_k,
            cos,
            sin,
            token,
            which,
            column,
            inside,
            HEAD,
            BLOCK,
        )
        if which == 0:
            if PACKS:
                _store_packed(turned, q_out, q_scales, row, column, inside, WIDTH, HEAD, BLOCK)
            else:
                tl.store(q_out + row * WIDTH + column, turned.to(q_out.dtype.element_ty), mask=inside)
        else:
            tl.store(k_rings + there, turned.to(k_rings.dtype.element_ty), mask=inside)


@triton.jit
def _mean_squares(qkv, means, tokens, whole, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    value = tl.load(qkv + row * 3 * WIDTH + which * WIDTH + column, mask=column < WIDTH, other=0.0).to(
        tl.float32
    )
    tl.store(means + which * tokens + row, tl.sum(value * value) / whole)


def launch_mean_squares(qkv_LX: Tensor, whole: int) -> Tensor:
    tokens = qkv_LX.shape[0]
    width = qkv_LX.shape[1] // 3
    assert qkv_LX.is_contiguous(), "the kernel walks rows of 3 * width"
    means_2L = torch.empty(2, tokens, dtype=torch.float32, device=qkv_LX.device)
    _mean_squares[(tokens, 2)](
        qkv_LX,
        means_2L,
        tokens,
        float(whole),
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=warps_for(width),
    )
    return means_2L


def launch_write_ring(
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
    (batch, tokens, width) = (*qkv_BLX.shape[:2], qkv_BLX.shape[2] // 3)
    (heads, head) = k_BWNH.shape[-2:]
    assert heads * head == width, f"{heads} heads of {head} are not the width {width}"
    assert qkv_BLX.is_contiguous(), "the kernel walks rows of 3 * width"
    assert len(k_BWNH) == len(v_BWNH) == batch, (
        f"{batch} rows of a batch, and rings of {len(k_BWNH)} and {len(v_BWNH)}"
    )
    assert k_BWNH.stride(0) == v_BWNH.stride(0), "keys and values lie alike"
    _refuse_gaps(k_BWNH, v_BWNH, width)
    assert phases.cos.is_contiguous(), "phases are read as rows"
    assert phases.cos.numel() == tokens * head // 2 == phases.sin.numel(), (
        f"phases {tuple(phases.cos.shape)} of {tokens} tokens"
    )
    assert not packs or head == triton.next_power_of_2(head), f"heads of {head} cannot be packed"
    assert means_2BL is None or means_2BL.shape == (2, batch, tokens), f"means of {means_2BL.shape}"
    assert means_2BL is None or means_2BL.is_contiguous(), "means are read as two rows"
    rows = batch * tokens
    device = qkv_BLX.device
    q_BLNH = torch.empty(
        batch, tokens, heads, head, dtype=torch.int8 if packs else qkv_BLX.dtype, device=device
    )
    scales_BLN = torch.empty(batch, tokens, heads, dtype=torch.float32, device=device) if packs else q_BLNH
    _write_ring[(rows, 3)](
        qkv_BLX, weight_q_D, weight_k_D, phases.cos, phases.sin, index_L, q_BLNH, scales_BLN, k_BWNH, v_BWNH,
        qkv_BLX if means_2BL is None else means_2BL, tokens, rows, k_BWNH.stride(0), eps,
        WIDTH=width, HEAD=head, BLOCK=triton.next_power_of_2(width), PACKS=packs, GIVEN=means_2BL is not None,
        num_warps=warps_for(width),
    )  # fmt: skip
    return PackedQueries(q_BLNH, scales_BLN) if packs else q_BLNH
