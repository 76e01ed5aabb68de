"""Triton: Philox 4x32-10 and Box-Muller in one pass. One program does a run of counters of one row, four
normals each.

The same words as `ops/noise.py` to the bit; normals to the last places of the device's logarithm and cosine.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_RUN = 1024
_TO_UNIT = tl.constexpr(2.0**-32)
_TO_ANGLE = tl.constexpr(6.283185307179586 * 2.0**-32)


@triton.jit(
    do_not_specialize=["count", "step", "chunk", "epoch", "seed"]
)  # they change: one kernel for all of them
def _gaussian(out, count, step, chunk, epoch, seed, RUN: tl.constexpr, SEEDED_ROWS: tl.constexpr):
    """Draw normals. `seed` is a number, or a pointer to each row's seed."""
    counter = tl.program_id(0) * RUN + tl.arange(0, RUN)
    if SEEDED_ROWS:
        row = tl.program_id(1)
        seed = tl.load(seed + row)
        out += row.to(tl.int64) * count
    zero = tl.zeros([RUN], tl.uint32)
    w0, w1, w2, w3 = tl.philox(
        seed,
        counter.to(tl.uint32),
        zero + step.to(tl.uint32),
        zero + chunk.to(tl.uint32),
        zero + epoch.to(tl.uint32),
    )
    place = out + counter.to(tl.int64) * 4
    left = count - counter.to(tl.int64) * 4
    for pair in tl.static_range(2):
        first = w0 if pair == 0 else w2
        second = w1 if pair == 0 else w3
        radius = tl.sqrt(-2.0 * tl.log((first.to(tl.float32) + 1.0) * _TO_UNIT))
        angle = second.to(tl.float32) * _TO_ANGLE
        tl.store(place + 2 * pair, radius * tl.cos(angle), mask=left > 2 * pair)
        tl.store(place + 2 * pair + 1, radius * tl.sin(angle), mask=left > 2 * pair + 1)


def launch_gaussian(
    count: int, *, seed: int, epoch: int, chunk: int, step: int, device: torch.device | str
) -> Tensor:
    """`count` normals in float32. All but `seed`, which has 64 bits, are unsigned words of 32."""
    out = torch.empty(count, dtype=torch.float32, device=device)
    _gaussian[(triton.cdiv(count, 4 * _RUN),)](
        out, count, step, chunk, epoch, seed, RUN=_RUN, SEEDED_ROWS=False
    )
    return out


def launch_gaussian_rows(count: int, seeds_B: Tensor, *, epoch: int, chunk: int, step: int) -> Tensor:
    """Draw `count` normals for every row, [B, count], each from a seed of its own."""
    assert seeds_B.dtype == torch.int64, f"seeds have 64 bits, got {seeds_B.dtype}"
    rows = len(seeds_B)
    out = torch.empty(rows, count, dtype=torch.float32, device=seeds_B.device)
    _gaussian[(triton.cdiv(count, 4 * _RUN), rows)](
        out, count, step, chunk, epoch, seeds_B, RUN=_RUN, SEEDED_ROWS=True
    )
    return out
