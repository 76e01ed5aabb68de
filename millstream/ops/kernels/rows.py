"""Triton: one program walks one token's row. Rows stay in registers between reading and the one write.

Shapes as in `ops/rows.py`. Absent tensors are passed as any other tensor and never touched: constants say which.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from millstream.ops.fp8 import E4M3, LARGEST, LEAST_SCALE, Rows8

_LARGEST = tl.constexpr(LARGEST)
_LEAST_SCALE = tl.constexpr(LEAST_SCALE)


@triton.jit
def _store_row(values, out, scales, row, column, inside, WIDTH: tl.constexpr, FP8: tl.constexpr):
    """As it is, or in e4m3 with its scale. `values` are zero outside."""
    if FP8:
        scale = tl.maximum(tl.max(tl.abs(values)) / _LARGEST, _LEAST_SCALE)
        tl.store(scales + row, scale)
        tl.store(out + row * WIDTH + column, (values * (1.0 / scale)).to(tl.float8e4nv), mask=inside)
    else:
        tl.store(out + row * WIDTH + column, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _added_row(x, y, gate, row, frame, column, inside, WIDTH: tl.constexpr, GATED: tl.constexpr):
    """The residual's row with what is added to it, stored, and in float32 as it was stored."""
    value = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    update = tl.load(y + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        update *= tl.load(gate + frame + column, mask=inside, other=0.0).to(tl.float32)
    rounded = (value + update).to(x.dtype.element_ty)
    tl.store(x + row * WIDTH + column, rounded, mask=inside)
    return rounded.to(tl.float32)


@triton.jit
def _add_gated(x, y, gate, tokens, frame_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    _added_row(x, y, gate, row, (row // tokens) * frame_stride, column, column < WIDTH, WIDTH, GATED)


@triton.jit
def _add_norm(
    x, y, gate, scale, shift, out, scales, tokens, frame_stride, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr, GATED: tl.constexpr, MODULATED: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    frame = (row // tokens) * frame_stride
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if ADDS:
        value = _added_row(x, y, gate, row, frame, column, inside, WIDTH, GATED)
    else:
        value = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, value - tl.sum(value) / WIDTH, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred) / WIDTH + eps)
    if MODULATED:
        normed *= 1.0 + tl.load(scale + frame + column, mask=inside, other=0.0).to(tl.float32)
        normed += tl.load(shift + frame + column, mask=inside, other=0.0).to(tl.float32)
    else:
        normed *= tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)
        normed += tl.load(shift + column, mask=inside, other=0.0).to(tl.float32)
    _store_row(normed, out, scales, row, column, inside, WIDTH, FP8)


@triton.jit
def _norm_query(q, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(q + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    normed = value * tl.rsqrt(tl.sum(value * value) / WIDTH + eps)
    normed *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _finish_attention(
    attended, lse, num_zeros, out, scales, tokens,
    WIDTH: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, CORRECT: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(attended + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if CORRECT:
        log_sum = tl.load(lse + (column // HEAD) * tokens + row, mask=inside, other=0.0)
        value = tl.where(inside, value / (1.0 - num_zeros * tl.exp(-log_sum)), 0.0)
    _store_row(value, out, scales, row, column, inside, WIDTH, FP8)


@triton.jit
def _gelu(x):
    """x * sigmoid(2u) is x / 2 * (1 + tanh(u))."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def _gelu_rows(hidden, out, scales, WIDTH: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr):
    """Two powers of two cover a row with fewer idle lanes than one."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, FIRST)
    tail = FIRST + tl.arange(0, REST)
    inside = tail < WIDTH
    a = _gelu(tl.load(hidden + row * WIDTH + head).to(tl.float32))
    b = _gelu(tl.load(hidden + row * WIDTH + tail, mask=inside, other=0.0).to(tl.float32))
    scale = tl.maximum(tl.maximum(tl.max(tl.abs(a)), tl.max(tl.abs(b))) / _LARGEST, _LEAST_SCALE)
    inverse = 1.0 / scale
    tl.store(scales + row, scale)
    tl.store(out + row * WIDTH + head, (a * inverse).to(tl.float8e4nv))
    tl.store(out + row * WIDTH + tail, (b * inverse).to(tl.float8e4nv), mask=inside)


def warps_for(width: int) -> int:
    return 4 if width < 4096 else 8


def _room(like_LD: Tensor, *, fp8: bool) -> tuple[Tensor, Tensor]:
    """Where rows go, and their scales; the latter is never touched without fp8."""
    out = torch.empty(like_LD.shape, dtype=E4M3 if fp8 else like_LD.dtype, device=like_LD.device)
    scales = torch.empty(len(like_LD), 1, dtype=torch.float32, device=like_LD.device) if fp8 else out
    return out, scales


def launch_add_gated(x_LD: Tensor, y_LD: Tensor, gate_FD: Tensor | None) -> None:
    tokens, width = x_LD.shape
    assert x_LD.is_contiguous(), "the residual is walked by rows"
    assert y_LD.is_contiguous(), "what is added is walked by rows"
    assert gate_FD is None or gate_FD.stride(-1) == 1, "rows must be contiguous"
    frames, stride = (1, 0) if gate_FD is None else (len(gate_FD), gate_FD.stride(0))
    _add_gated[(tokens,)](
        x_LD, y_LD, x_LD if gate_FD is None else gate_FD, tokens // frames, stride,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), GATED=gate_FD is not None, num_warps=warps_for(width),
    )  # fmt: skip


def launch_add_norm(
    x_LD: Tensor, y_LD: Tensor | None, gate_FD: Tensor | None, scale: Tensor, shift: Tensor, *, eps: float, fp8: bool
) -> Tensor | Rows8:
    tokens, width = x_LD.shape
    modulated = scale.dim() == 2
    per_frame = [t for t in (gate_FD, *((scale, shift) if modulated else ())) if t is not None]
    frames = {len(t) for t in per_frame} or {1}
    strides = {t.stride(0) for t in per_frame} or {0}
    assert len(frames) == 1, f"gate, scale and shift are of {frames} frames"
    assert len(strides) == 1, f"gate, scale and shift are {strides} apart from frame to frame"
    assert all(t.stride(-1) == 1 for t in (*per_frame, scale, shift)), "rows must be contiguous"
    assert x_LD.is_contiguous(), "the residual is walked by rows"
    assert y_LD is None or y_LD.is_contiguous(), "what is added is walked by rows"
    out, scales = _room(x_LD, fp8=fp8)
    _add_norm[(tokens,)](
        x_LD, x_LD if y_LD is None else y_LD, x_LD if gate_FD is None else gate_FD, scale, shift, out, scales,
        tokens // frames.pop(), strides.pop(), eps,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), ADDS=y_LD is not None, GATED=gate_FD is not None,
        MODULATED=modulated, FP8=fp8, num_warps=warps_for(width),
    )  # fmt: skip
    return Rows8(out, scales) if fp8 else out


def launch_norm_query(q_LD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    tokens, width = q_LD.shape
    assert q_LD.is_contiguous(), "queries are walked by rows"
    out = torch.empty_like(q_LD)
    _norm_query[(tokens,)](
        q_LD, weight_D, out, eps, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=warps_for(width)
    )
    return out


def launch_finish_attention(out_LD: Tensor, lse_NL: Tensor | None, num_zeros: int, *, fp8: bool) -> Tensor | Rows8:
    tokens, width = out_LD.shape
    assert out_LD.is_contiguous(), "answers are walked by rows"
    assert not num_zeros or lse_NL is not None, "zeros among the keys cannot be corrected without the log-sum-exp"
    head = 1 if lse_NL is None else width // lse_NL.shape[0]
    assert lse_NL is None or lse_NL.is_contiguous(), "the log-sum-exp is read as [heads, tokens]"
    out, scales = _room(out_LD, fp8=fp8)
    _finish_attention[(tokens,)](
        out_LD, out_LD if lse_NL is None else lse_NL, float(num_zeros), out, scales, tokens,
        WIDTH=width, HEAD=head, BLOCK=triton.next_power_of_2(width), CORRECT=num_zeros > 0, FP8=fp8,
        num_warps=warps_for(width),
    )  # fmt: skip
    return Rows8(out, scales) if fp8 else out


def launch_gelu_rows(hidden_LU: Tensor) -> Rows8:
    tokens, width = hidden_LU.shape
    assert hidden_LU.is_contiguous(), "rows are walked"
    first = triton.next_power_of_2(width) // 2
    out, scales = _room(hidden_LU, fp8=True)
    _gelu_rows[(tokens,)](
        hidden_LU, out, scales, WIDTH=width, FIRST=first, REST=triton.next_power_of_2(width - first), num_warps=8
    )
    return Rows8(out, scales)
