"""Triton: keys and values to 8 bits. One program does one head's keys, or its values, of one tile.

Shapes as in `ops/quantised_kv.py`. Which tiles is read on the device, where runs begin, so that a recording
packs what is new in every chunk. A tile that two runs touch is packed twice, to the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from millstream.ops.fp8 import LARGEST, LEAST_SCALE
from millstream.ops.quantised_kv import LARGEST_KEY, TILE, QuantisedKV

_LARGEST_KEY = tl.constexpr(LARGEST_KEY)
_LARGEST_VALUE = tl.constexpr(LARGEST)
_LEAST_SCALE = tl.constexpr(LEAST_SCALE)
ROUNDS = tl.constexpr(1.5 * 2**23)
"""Added to a small number and taken away again, it leaves the nearest whole one, the even one of two: floats
that large have no places after the point."""


@triton.jit(
    do_not_specialize=["places", "length", "pieces"]
)  # a window that fills has many lengths, and one kernel
def _pack_runs(
    k, v, k_mean, v_mean, starts, k8, vt8, k_scales, v_scales, places, length, pieces, row_step, start_step,
    room, N: tl.constexpr, H: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0) // pieces
    head = tl.program_id(1)
    row = (tl.program_id(2) // 2).to(tl.int64)
    start = tl.load(starts + run * start_step).to(tl.int32)
    tile = start // TILE + tl.program_id(0) % pieces
    if tile * TILE < start + length:
        place = tile * TILE + tl.arange(0, TILE)
        channel = tl.arange(0, H)
        inside = (place < places)[:, None]
        source = row * row_step + place.to(tl.int64)[:, None] * (N * H) + head * H + channel[None, :]
        first = row * N + head
        scales = first * (room // TILE) + tile
        if tl.program_id(2) % 2 == 0:
            keys = tl.load(k + source, mask=inside, other=0.0).to(tl.float32)
            keys = tl.where(inside, keys - tl.load(k_mean + first * H + channel)[None, :], 0.0)
            scale = tl.maximum(tl.max(tl.abs(keys)) / _LARGEST_KEY, _LEAST_SCALE)
            tl.store(k_scales + scales, scale)
            keys = (keys * (1.0 / scale) + ROUNDS) - ROUNDS
            target = (row * room + place)[:, None] * (N * H) + head * H + channel[None, :]
            tl.store(k8 + target, keys.to(tl.int8))
        else:
            values = tl.load(v + source, mask=inside, other=0.0).to(tl.float32)
            values = tl.where(inside, values - tl.load(v_mean + first * H + channel)[None, :], 0.0)
            scale = tl.maximum(tl.max(tl.abs(values)) / _LARGEST_VALUE, _LEAST_SCALE)
            tl.store(v_scales + scales, scale)
            turned = tl.trans((values * (1.0 / scale)).to(tl.float8e4nv))
            tl.store(vt8 + (first * H + channel)[:, None] * room + place[None, :], turned)


def launch_pack_runs(
    packed: QuantisedKV, k_RWNH: Tensor, v_RWNH: Tensor, starts_F: Tensor, length: int
) -> None:
    rows, places, heads, width = k_RWNH.shape
    room = packed.k_RWNH.shape[1]
    assert places <= room, f"{places} keys for a room of {room}"
    assert k_RWNH.stride()[1:] == v_RWNH.stride()[1:] == (heads * width, width, 1), (
        f"keys and values must be contiguous rows, got strides {k_RWNH.stride()} and {v_RWNH.stride()}"
    )
    assert k_RWNH.stride(0) == v_RWNH.stride(0), f"rows are {k_RWNH.stride(0)} and {v_RWNH.stride(0)} apart"
    assert all(tensor.is_contiguous() for tensor in packed.tensors), "packed rows are walked in order"
    pieces = (length + TILE - 2) // TILE + 1
    _pack_runs[(len(starts_F) * pieces, heads, 2 * rows)](
        k_RWNH, v_RWNH, packed.k_mean_RNH, packed.v_mean_RNH, starts_F, packed.k_RWNH, packed.vt_RNHW,
        packed.k_scales_RNT, packed.v_scales_RNT, places, length, pieces, k_RWNH.stride(0),
        starts_F.stride(0), room, N=heads, H=width, TILE=TILE, num_warps=8,
    )  # fmt: skip
