"""Triton: the passes between a VAE's convolutions, and the one to bytes. One program does a run of pixels,
all their channels.

Shapes as in `ops/pictures.py`. Pixels are numbered in 32 bits, places in memory in 64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from millstream.ops.conv3 import PAST, TAPS

_VALUES = 4096
"""Values that one program holds."""
_BYTES = 1024
"""Bytes that one program writes."""
_ROUNDS = tl.constexpr(1.5 * 2**23)
"""Added to a small number and taken away again, it leaves the nearest whole one, the even one of two: floats
that large have no places after the point."""
_TAPS = tl.constexpr(TAPS)


@triton.jit
def _merge_onto(
    y, bias, residual, weight, kept, canvas, tail, pixels, ROWS, COLUMNS, CANVAS_ROWS, CANVAS_COLUMNS,
    before_tail, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr, PHASES: tl.constexpr,
    ADDS: tl.constexpr, NORMS: tl.constexpr, KEEPS: tl.constexpr, PAINTS: tl.constexpr, LEAVES: tl.constexpr,
    AFTER: tl.constexpr, PAD: tl.constexpr, ROOT: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * RUN + tl.arange(0, RUN)
    channel = tl.arange(0, BLOCK)
    column = pixel % COLUMNS
    row = (pixel // COLUMNS) % ROWS
    frame = pixel // (COLUMNS * ROWS)
    inside = (pixel < pixels)[:, None] & (channel < CHANNELS)[None, :]
    here = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    source = here
    if PHASES:
        cell = (frame * (ROWS // 2 + 1) + row // 2 + row % 2) * (COLUMNS // 2 + 1) + column // 2 + column % 2
        phase = (row % 2) * 2 + column % 2
        source = (cell.to(tl.int64) * 4 + phase)[:, None] * CHANNELS + channel[None, :]
    value = tl.load(y + source, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)[None, :]
    if ADDS:
        value += tl.load(residual + here, mask=inside, other=0.0).to(tl.float32)
    if KEEPS:
        tl.store(kept + here, value.to(kept.dtype.element_ty), mask=inside)
    if PAINTS:
        if NORMS:
            scale = tl.rsqrt(tl.maximum(tl.sum(value * value, 1), 1e-24)) * ROOT
            value *= (
                scale[:, None]
                * tl.load(weight + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)[None, :]
            )
            value *= tl.sigmoid(value)
        place = ((frame + AFTER) * CANVAS_ROWS + row + PAD).to(tl.int64) * CANVAS_COLUMNS + column + PAD
        target = place[:, None] * CHANNELS + channel[None, :]
        tl.store(canvas + target, value.to(canvas.dtype.element_ty), mask=inside)
        if LEAVES:
            again = (pixel - before_tail).to(tl.int64)[:, None] * CHANNELS + channel[None, :]
            tl.store(
                tail + again, value.to(tail.dtype.element_ty), mask=inside & (pixel >= before_tail)[:, None]
            )


@triton.jit
def _split_frames(
    y, bias, out, pixels, frame_pixels, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    pixel = tl.program_id(0) * RUN + tl.arange(0, RUN)
    channel = tl.arange(0, BLOCK)
    inside = (pixel < pixels)[:, None] & (channel < CHANNELS)[None, :]
    frame = pixel // frame_pixels
    half = frame % 2
    source = ((frame // 2) * frame_pixels + pixel % frame_pixels).to(tl.int64) * 2 + half
    value = tl.load(y + source[:, None] * CHANNELS + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + (half * CHANNELS)[:, None] + channel[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    target = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(out + target, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum_taps(planes, bias, out, pixels, ROWS, COLUMNS, plane, CHANNELS: tl.constexpr, RUN: tl.constexpr):
    pixel = tl.program_id(0) * RUN + tl.arange(0, RUN)
    there = pixel < pixels
    column = pixel % COLUMNS
    row = (pixel // COLUMNS) % ROWS
    frame = pixel // (COLUMNS * ROWS)
    for channel in tl.static_range(CHANNELS):
        total = tl.zeros([RUN], tl.float32) + tl.load(bias + channel).to(tl.float32)
        for tap in tl.static_range(_TAPS):
            r = row + (tap // 3) % 3
            c = column + tap % 3
            place = ((frame + tap // 9) * (ROWS + 2) + r).to(tl.int64) * (COLUMNS + 2) + c
            start = planes + (tap * CHANNELS + channel) * plane.to(tl.int64)
            total += tl.load(start + place, mask=there, other=0.0).to(tl.float32)
        total = tl.minimum(tl.maximum(total, -1.0), 1.0)
        tl.store(out + channel * pixels.to(tl.int64) + pixel, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _to_pictures(
    pixels, out, count, ROWS, COLUMNS, frame_step, colour_step, row_step, column_step,
    COLOURS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * RUN + tl.arange(0, RUN)
    there = place < count
    colour = (place % COLOURS).to(tl.int64)
    pixel = place // COLOURS
    column = (pixel % COLUMNS).to(tl.int64)
    row = (pixel // COLUMNS % ROWS).to(tl.int64)
    frame = (pixel // (COLUMNS * ROWS)).to(tl.int64)
    source = frame * frame_step + colour * colour_step + row * row_step + column * column_step
    value = (tl.load(pixels + source, mask=there, other=0.0).to(tl.float32) + 1.0) * 127.5
    value = tl.minimum(tl.maximum(value, 0.0), 255.0)
    whole = (value + _ROUNDS) - _ROUNDS
    tl.store(out + place, whole.to(tl.int32).to(tl.uint8), mask=there)


def _run(channels: int) -> tuple[int, int]:
    """Channels a program takes, rounded up, and pixels."""
    block = triton.next_power_of_2(channels)
    return block, max(4, _VALUES // block)


def launch_merge_onto(
    y: Tensor,
    bias_C: Tensor,
    residual_TYXC: Tensor | None,
    weight_C: Tensor | None,
    canvas: Tensor | None,
    *,
    past: int = PAST,
    pad: int = 0,
    keep: bool = False,
    tail: Tensor | None = None,
) -> Tensor | None:
    phases = y.dim() == 5
    channels = y.shape[-1]
    frames, rows, columns = (y.shape[0], 2 * y.shape[1] - 2, 2 * y.shape[2] - 2) if phases else y.shape[:3]
    assert y.is_contiguous(), "pixels are walked in order"
    assert residual_TYXC is None or residual_TYXC.is_contiguous(), "pixels are walked in order"
    if canvas is not None:
        fits = (canvas.shape[0], canvas.shape[3]) == (past + frames, channels)
        fits = (
            fits
            and canvas.shape[1] >= pad + rows
            and canvas.shape[2] >= pad + columns
            and canvas.is_contiguous()
        )
        assert fits, (
            f"canvas {tuple(canvas.shape)} for {(frames, rows, columns, channels)}, past {past}, pad {pad}"
        )
    if tail is not None:
        fits = canvas is not None and tail.shape == (past, rows, columns, channels) and tail.is_contiguous()
        assert fits, f"a tail {tuple(tail.shape)} for {(frames, rows, columns, channels)}, past {past}"
    kept = torch.empty(frames, rows, columns, channels, dtype=y.dtype, device=y.device) if keep else None
    (block, run) = _run(channels)
    pixels = frames * rows * columns
    _merge_onto[(triton.cdiv(pixels, run),)](
        y, bias_C, y if residual_TYXC is None else residual_TYXC, bias_C if weight_C is None else weight_C,
        y if kept is None else kept, y if canvas is None else canvas, y if tail is None else tail, pixels,
        rows, columns, 0 if canvas is None else canvas.shape[1], 0 if canvas is None else canvas.shape[2],
        (frames - past) * rows * columns, CHANNELS=channels, BLOCK=block, RUN=run, PHASES=phases,
        ADDS=residual_TYXC is not None, NORMS=weight_C is not None, KEEPS=keep, PAINTS=canvas is not None,
        LEAVES=tail is not None, AFTER=past, PAD=pad, ROOT=channels**0.5, num_warps=4,
    )  # fmt: skip
    return kept


def launch_split_frames(y_TYXC: Tensor, bias_C: Tensor) -> Tensor:
    frames, rows, columns, both = y_TYXC.shape
    assert y_TYXC.is_contiguous(), "pixels are walked in order"
    out = torch.empty(2 * frames, rows, columns, both // 2, dtype=y_TYXC.dtype, device=y_TYXC.device)
    (block, run) = _run(both // 2)
    pixels = 2 * frames * rows * columns
    _split_frames[(triton.cdiv(pixels, run),)](
        y_TYXC, bias_C, out, pixels, rows * columns, CHANNELS=both // 2, BLOCK=block, RUN=run, num_warps=4
    )
    return out


def launch_sum_taps(planes: Tensor, bias_C: Tensor, frames: int) -> Tensor:
    channels = len(bias_C)
    (_, past_frames, rows, columns) = planes.shape
    assert past_frames == frames + PAST, f"planes of {past_frames} frames for {frames}"
    assert planes.is_contiguous(), "planes are walked in order"
    rows = rows - 2
    columns = columns - 2
    out = torch.empty(channels, frames, rows, columns, dtype=planes.dtype, device=planes.device)
    pixels = frames * rows * columns
    run = 512
    _sum_taps[(triton.cdiv(pixels, run),)](
        planes, bias_C, out, pixels, rows, columns, planes.stride(0), CHANNELS=channels, RUN=run, num_warps=4
    )
    return out


def launch_to_pictures(pixels_TCYX: Tensor) -> Tensor:
    frames, colours, rows, columns = pixels_TCYX.shape
    out = torch.empty(frames, rows, columns, colours, dtype=torch.uint8, device=pixels_TCYX.device)
    _to_pictures[(triton.cdiv(out.numel(), _BYTES),)](
        pixels_TCYX,
        out,
        out.numel(),
        rows,
        columns,
        *pixels_TCYX.stride(),
        COLOURS=colours,
        RUN=_BYTES,
        num_warps=4,
    )
    return out
