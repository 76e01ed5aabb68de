"""Triton: one program walks one token's row. Rows stay in registers between reading and the one write.

Shapes as in `ops/rows.py`. Absent tensors are passed as any other tensor and never touched: constants say
which.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from millstream.ops.attention import AttentionShare
from millstream.ops.fp8 import E4M3, LARGEST, LEAST_SCALE, Rows8
from millstream.ops.frame_rows import Addend, RowsOfFrames

_LARGEST = tl.constexpr(LARGEST)
_LEAST_SCALE = tl.constexpr(LEAST_SCALE)


@triton.jit
def _store_copies(
    values, outs, scales, row, column, inside, WIDTH: tl.constexpr, COPIES: tl.constexpr, FP8: tl.constexpr
):
    """As it is, or in e4m3 with its scale, in several places alike. `values` are zero outside."""
    if FP8:
        scale = tl.maximum(tl.max(tl.abs(values)) / _LARGEST, _LEAST_SCALE)
        kept = (values * (1.0 / scale)).to(tl.float8e4nv)
        for copy in tl.static_range(COPIES):
            tl.store(scales[copy] + row, scale)
            tl.store(outs[copy] + row * WIDTH + column, kept, mask=inside)
    else:
        for copy in tl.static_range(COPIES):
            tl.store(outs[copy] + row * WIDTH + column, values.to(outs[copy].dtype.element_ty), mask=inside)


@triton.jit
def _store_row(values, out, scales, row, column, inside, WIDTH: tl.constexpr, FP8: tl.constexpr):
    _store_copies(values, (out,), (scales,), row, column, inside, WIDTH, 1, FP8)


@triton.jit
def _with_gated(
    x, parts, gate, row, frame, column, inside, WIDTH: tl.constexpr, PARTS: tl.constexpr, GATED: tl.constexpr
):
    """The residual's row and what its parts, in their order, add to it, in float32."""
    value = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    update = tl.load(parts[0] + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        update += tl.load(parts[part] + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        update *= tl.load(gate + frame + column, mask=inside, other=0.0).to(tl.float32)
    return value + update


@triton.jit
def _add_gated(
    x, parts, gate, tokens, first, last, frame_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    frame = tl.minimum((row + first) // tokens, last) * frame_stride
    value = _with_gated(x, parts, gate, row, frame, column, inside, WIDTH, PARTS, GATED)
    tl.store(x + row * WIDTH + column, value.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm(
    x, parts, gate, scale, shift, later, outs, scales, tokens, first, last, frame_stride, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, GATED: tl.constexpr,
    MODULATED: tl.constexpr, LATER: tl.constexpr, COPIES: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    frame = tl.minimum((row + first) // tokens, last) * frame_stride
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if PARTS > 0:
        value = _with_gated(x, parts, gate, row, frame, column, inside, WIDTH, PARTS, GATED)
    else:
        value = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if LATER:
        left = value + tl.load(later + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + row * WIDTH + column, left.to(x.dtype.element_ty), mask=inside)
    elif PARTS > 0:
        tl.store(x + row * WIDTH + column, value.to(x.dtype.element_ty), mask=inside)
    value = value.to(x.dtype.element_ty).to(tl.float32)
    centred = tl.where(inside, value - tl.sum(value) / WIDTH, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred) / WIDTH + eps)
    if MODULATED:
        normed *= 1.0 + tl.load(scale + frame + column, mask=inside, other=0.0).to(tl.float32)
        normed += tl.load(shift + frame + column, mask=inside, other=0.0).to(tl.float32)
    else:
        normed *= tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)
        normed += tl.load(shift + column, mask=inside, other=0.0).to(tl.float32)
    _store_copies(normed, outs, scales, row, column, inside, WIDTH, COPIES, FP8)


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
    attended, lse, num_zeros, out, scales, tokens, rows,
    WIDTH: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, SUMS: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if SUMS:
        sums = lse + (row // tokens * (WIDTH // HEAD) + column // HEAD) * tokens + row % tokens
        most = tl.load(sums, mask=inside, other=0.0)
        for part in tl.static_range(1, PARTS):
            most = tl.maximum(most, tl.load(sums + part * (WIDTH // HEAD) * rows, mask=inside, other=0.0))
        whole = -num_zeros * tl.exp(-most)
        value = tl.zeros([BLOCK], tl.float32)
        for part in tl.static_range(PARTS):
            share = tl.exp(tl.load(sums + part * (WIDTH // HEAD) * rows, mask=inside, other=0.0) - most)
            answer = tl.load(attended + (part * rows + row) * WIDTH + column, mask=inside, other=0.0).to(
                tl.float32
            )
            value += share * answer
            whole += share
        value = tl.where(inside, value / whole, 0.0)
    else:
        value = tl.load(attended + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    _store_row(value, out, scales, row, column, inside, WIDTH, FP8)


@triton.jit
def _join_heads(
    parts,
    out,
    scales,
    tokens,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    FP8: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    there = ((column // PART) * tokens + row) * PART + column % PART
    value = tl.load(parts + there, mask=inside, other=0.0).to(tl.float32)
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


def _room(like: Tensor, tokens: int, width: int, *, fp8: bool) -> tuple[Tensor, Tensor]:
    """Where rows go, and their scales; the latter is never touched without fp8."""
    out = torch.empty(tokens, width, dtype=E4M3 if fp8 else like.dtype, device=like.device)
    scales = torch.empty(tokens, 1, dtype=torch.float32, device=like.device) if fp8 else out
    return out, scales


def _rows(out: Tensor, scales: Tensor, *, fp8: bool) -> Tensor | Rows8:
    return Rows8(out, scales) if fp8 else out


def _parts(x_LD: Tensor, y: Addend) -> tuple[Tensor, ...]:
    parts = (y,) if isinstance(y, Tensor) else tuple(y)
    assert x_LD.is_contiguous(), "the residual is walked by rows"
    assert all(part.is_contiguous() and part.shape == x_LD.shape for part in parts), (
        "what is added is walked by rows"
    )
    return parts


def _numbers(
    outs: Sequence[Tensor | Rows8], tokens: int, width: int, *, fp8: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Where rows go and where their scales; the latter are never touched without fp8."""
    assert all(isinstance(out, Rows8) == fp8 for out in outs), f"rows leave {'' if fp8 else 'not '}as Rows8"
    numbers = tuple(out.values_LI if isinstance(out, Rows8) else out for out in outs)
    assert all(out.is_contiguous() and out.shape == (tokens, width) for out in numbers), (
        "results are walked by rows"
    )
    return numbers, tuple(out.scales_L1 for out in outs if isinstance(out, Rows8)) or numbers


def _frames(tokens: int, frames: int, rows: RowsOfFrames | None) -> tuple[int, int, int]:
    """Tokens of a frame, the row of the chunk that the first of these is, and the last frame."""
    assert rows is not None or tokens % frames == 0, f"{tokens} rows are no {frames} frames"
    return (tokens // frames, 0, frames - 1) if rows is None else (rows.tokens, rows.first, frames - 1)


def launch_add_gated(
    x_LD: Tensor, y: Addend, gate_FD: Tensor | None, rows: RowsOfFrames | None = None
) -> None:
    tokens, width = x_LD.shape
    parts = _parts(x_LD, y)
    assert gate_FD is None or gate_FD.stride(-1) == 1, "rows must be contiguous"
    frames, stride = (1, 0) if gate_FD is None else (len(gate_FD), gate_FD.stride(0))
    _add_gated[(tokens,)](
        x_LD, parts, x_LD if gate_FD is None else gate_FD, *_frames(tokens, frames, rows), stride,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), PARTS=len(parts), GATED=gate_FD is not None,
        num_warps=warps_for(width),
    )  # fmt: skip


def launch_add_norm(
    x_LD: Tensor,
    y: Addend | None,
    gate_FD: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    later_D: Tensor | None = None,
    *,
    eps: float,
    fp8: bool,
    rows: RowsOfFrames | None = None,
    outs: Sequence[Tensor | Rows8] = (),
) -> Tensor | Rows8:
    tokens, width = x_LD.shape
    modulated = scale.dim() == 2
    per_frame = [t for t in (gate_FD, *((scale, shift) if modulated else ())) if t is not None]
    frames = {len(t) for t in per_frame} or {1}
    strides = {t.stride(0) for t in per_frame} or {0}
    assert len(frames) == 1, f"gate, scale and shift are of {frames} frames"
    assert len(strides) == 1, f"gate, scale and shift are {strides} apart from frame to frame"
    assert all(t.stride(-1) == 1 for t in (*per_frame, scale, shift)), "rows must be contiguous"
    parts = _parts(x_LD, () if y is None else y)
    outs = outs or (_rows(*_room(x_LD, tokens, width, fp8=fp8), fp8=fp8),)
    numbers, scales = _numbers(outs, tokens, width, fp8=fp8)
    _add_norm[(tokens,)](
        x_LD, parts or (x_LD,), x_LD if gate_FD is None else gate_FD, scale, shift,
        x_LD if later_D is None else later_D, numbers, scales, *_frames(tokens, frames.pop(), rows),
        strides.pop(), eps, WIDTH=width, BLOCK=triton.next_power_of_2(width), PARTS=len(parts),
        GATED=gate_FD is not None, MODULATED=modulated, LATER=later_D is not None, COPIES=len(outs), FP8=fp8,
        num_warps=warps_for(width),
    )  # fmt: skip
    return outs[0]


def launch_norm_query(q_LD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    tokens, width = q_LD.shape
    assert q_LD.is_contiguous(), "queries are walked by rows"
    out = torch.empty_like(q_LD)
    _norm_query[(tokens,)](
        q_LD, weight_D, out, eps, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=warps_for(width)
    )
    return out


def launch_finish_attention(shares: Sequence[AttentionShare], num_zeros: int, *, fp8: bool) -> Tensor | Rows8:
    width = shares[0].out_PBLD.shape[-1]
    last = 0
    out, scales = _room(
        shares[0].out_PBLD, sum(share.out_PBLD.shape[1:3].numel() for share in shares), width, fp8=fp8
    )
    for (parts, batch, tokens, _), (attended, lse) in ((share.out_PBLD.shape, share) for share in shares):
        rows = batch * tokens
        assert attended.is_contiguous(), "answers are walked by rows"
        assert lse is not None or parts == 1, "parts cannot be put together without their sums"
        assert lse is not None or not num_zeros, (
            "zeros among the keys cannot be corrected without the log-sum-exp"
        )
        assert lse is None or lse.is_contiguous(), "the log-sum-exp is read as [parts, batch, heads, tokens]"
        _finish_attention[(rows,)](
            attended, attended if lse is None else lse, float(num_zeros), out[last:], scales[last:], tokens,
            rows, WIDTH=width, HEAD=1 if lse is None else width // lse.shape[2],
            BLOCK=triton.next_power_of_2(width), PARTS=parts,
            SUMS=lse is not None and (num_zeros > 0 or parts > 1), FP8=fp8, num_warps=warps_for(width),
        )  # fmt: skip
        last += rows
    return _rows(out, scales, fp8=fp8)


def launch_join_heads(parts_PLX: Tensor, *, fp8: bool) -> Tensor | Rows8:
    parts, tokens, part = parts_PLX.shape
    assert parts_PLX.is_contiguous(), "the heads of all ranks are walked by rows"
    out, scales = _room(parts_PLX, tokens, parts * part, fp8=fp8)
    _join_heads[(tokens,)](
        parts_PLX, out, scales, tokens,
        WIDTH=parts * part, PART=part, BLOCK=triton.next_power_of_2(parts * part), FP8=fp8,
        num_warps=warps_for(parts * part),
    )  # fmt: skip
    return _rows(out, scales, fp8=fp8)


def launch_gelu_rows(hidden_LU: Tensor) -> Rows8:
    tokens, width = hidden_LU.shape
    assert hidden_LU.is_contiguous(), "rows are walked"
    first = triton.next_power_of_2(width) // 2
    out, scales = _room(hidden_LU, tokens, width, fp8=True)
    _gelu_rows[(tokens,)](
        hidden_LU,
        out,
        scales,
        WIDTH=width,
        FIRST=first,
        REST=triton.next_power_of_2(width - first),
        num_warps=8,
    )
    return Rows8(out, scales)
