"""Triton: attention over packed keys and values. One program does a block of queries of one head over all
tiles of keys.

Shapes as in `ops/low_attention.py`. Tiles come through descriptors made on the host, so no launch needs
memory of its own and any of them can be recorded. Two matmuls a tile, both in 8 bits; between them a softmax
that keeps up as it goes.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from millstream.ops.kernels.quantise_kv import ROUNDS
from millstream.ops.quantised_kv import LIFT, TILE, PackedQueries, QuantisedKV

QUERIES = 64
WARPS = 4
STAGES = 3
"""Queries, warps and pipeline stages of a program: what measured fastest on an H200."""
_ROUNDS_BITS = tl.constexpr(0x4B400000)
"""Bits of ROUNDS. A whole number below 2**22, as every score of heads up to 256 is, added to them gives the
bits of the float that is their sum: a conversion at the price of an addition, which the matmul does as it
begins."""


@triton.jit
def _over_tile(
    sums, top, total, asked, row_scale, k_tiles, vt_tiles, k_scales, v_scales, k_row, vt_row, column, tile,
    left, TILE: tl.constexpr, LIFT: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    """The state after one more tile of keys, the first `left` of them if it is CUT. `sums` are in units of
    the last tile's values, `top` is LIFT below the largest score so far, in powers of two as all scores
    are."""
    scale = row_scale * tl.load(k_scales + tile)
    v_scale = tl.load(v_scales + tile)
    ratio = (
        tl.load(v_scales + tl.maximum(tile - 1, 0)) / v_scale
    )  # loaded again: quicker than carried from turn to turn
    scores = tl.dot(asked, k_tiles.load([k_row + tile * TILE, column]).T)
    scores = (scores + _ROUNDS_BITS).to(tl.float32, bitcast=True)
    zero = -(ROUNDS * scale)
    if CUT:
        scores = tl.where(tl.arange(0, TILE)[None, :] < left, scores, -1e30)
    new = tl.maximum(top, tl.max(scores, 1) * scale + (zero - LIFT))
    probabilities = tl.exp2(scores * scale[:, None] + (zero - new)[:, None])
    fade = tl.exp2(top - new)
    total = total * fade + tl.sum(probabilities, 1)
    sums *= (fade * ratio)[:, None]
    sums = tl.dot(probabilities.to(tl.float8e4nv), vt_tiles.load([vt_row, tile * TILE]).T, sums)
    return sums, new, total


@triton.jit(
    do_not_specialize=["queries", "keys"]
)  # a window that fills has many lengths: one kernel for all of them
def _attend_packed(
    q, q_scales, k_tiles, vt_tiles, k_scales, v_scales, v_mean, out, queries, keys, room, base,
    N: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, LIFT: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    batch = tl.program_id(2)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = batch.to(tl.int64) * queries + row
    inside = row < queries
    numbers = here[:, None] * (N * H) + head * H + tl.arange(0, H)[None, :]
    asked = tl.load(q + numbers, mask=inside[:, None], other=0.0)
    row_scale = tl.load(q_scales + here * N + head, mask=inside, other=0.0) * base
    first = batch * N + head
    k_scales += first * (room // TILE)
    v_scales += first * (room // TILE)
    sums = tl.zeros([BLOCK, H], tl.float32)
    top = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    full = keys // TILE
    for tile in tl.range(0, full):
        sums, top, total = _over_tile(
            sums, top, total, asked, row_scale, k_tiles, vt_tiles, k_scales, v_scales,
            batch * room, first * H, head * H, tile, TILE, TILE, LIFT, False,
        )  # fmt: skip
    left = keys - full * TILE
    if left > 0:
        sums, top, total = _over_tile(
            sums, top, total, asked, row_scale, k_tiles, vt_tiles, k_scales, v_scales,
            batch * room, first * H, head * H, full, left, TILE, LIFT, True,
        )  # fmt: skip
    v_scale = tl.load(v_scales + (keys - 1) // TILE)
    answer = sums * (v_scale / total)[:, None] + tl.load(v_mean + first * H + tl.arange(0, H))[None, :]
    tl.store(out + numbers, answer.to(out.dtype.element_ty), mask=inside[:, None])


def launch_attend_packed(
    q_BLNH: PackedQueries, packed: QuantisedKV, keys: int, *, dtype: torch.dtype
) -> Tensor:
    (batch, queries, heads, width) = q_BLNH.numbers.shape
    room = packed.k_RWNH.shape[1]
    assert q_BLNH.numbers.dtype == packed.k_RWNH.dtype == torch.int8, (
        f"{q_BLNH.numbers.dtype} for {packed.k_RWNH.dtype}"
    )
    assert all(tensor.is_contiguous() for tensor in (q_BLNH.numbers, q_BLNH.scales)), (
        "queries are walked in order"
    )
    assert all(tensor.is_contiguous() for tensor in packed.tensors), (
        "keys are read as rows of heads, values of channels"
    )
    assert 0 < keys <= room, f"{keys} keys of {room}"
    k_tiles = TensorDescriptor.from_tensor(packed.k_RWNH.view(batch * room, heads * width), [TILE, width])
    vt_tiles = TensorDescriptor.from_tensor(packed.vt_RNHW.view(batch * heads * width, room), [width, TILE])
    out = torch.empty(q_BLNH.numbers.shape, dtype=dtype, device=q_BLNH.numbers.device)
    _attend_packed[(triton.cdiv(queries, QUERIES), heads, batch)](
        q_BLNH.numbers, q_BLNH.scales, k_tiles, vt_tiles, packed.k_scales_RNT, packed.v_scales_RNT,
        packed.v_mean_RNH, out, queries, keys, room, math.log2(math.e) * width**-0.5, N=heads, H=width,
        BLOCK=QUERIES, TILE=TILE, LIFT=LIFT, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out
