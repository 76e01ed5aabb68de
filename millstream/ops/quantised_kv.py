"""Keys and values in 8 bits, as a matmul of 8 bits wants them: keys in int8, values in e4m3 and turned, a
scale for each tile.

Means are taken away first, and what is left is smaller and rounds better. A mean key moves all scores of a
query alike, which softmax does not see; a mean value is added to the answer again, where probabilities sum to
one. `ops/quantise_kv.py` packs.
Shapes: R rows (layers, sessions), W places, N heads, H head width, T tiles of places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from millstream.ops.fp8 import E4M3, LARGEST, LEAST_SCALE

TILE = 128
"""Keys that share a scale, and that attention takes at a time."""
LARGEST_KEY = 127.0
"""Number that the largest channel of a query, or of a tile of keys, becomes."""
LIFT = 8
"""Attention's probabilities reach 2**LIFT before they are rounded to e4m3, so that small ones are not
lost."""


@dataclass(frozen=True, slots=True)
class QuantisedKV:
    """Places are a number of tiles; those that hold nothing are zeros."""

    k_RWNH: Tensor
    """int8; values, which are turned, are e4m3."""
    vt_RNHW: Tensor
    k_scales_RNT: Tensor
    v_scales_RNT: Tensor
    k_mean_RNH: Tensor
    v_mean_RNH: Tensor
    """Means that are subtracted from every key and every value of a row; any numbers will do, as long as they
    stay the same."""

    @staticmethod
    def room(rows: int, places: int, heads: int, head_width: int, *, device: torch.device) -> QuantisedKV:
        """Return zeros in one run of memory: what was recorded of one holds for the next that lies there."""
        tiles = -(-places // TILE)
        scales = (rows, heads, tiles)
        means = (rows, heads, head_width)
        kinds = (
            ((rows, tiles * TILE, heads, head_width), torch.int8),
            ((rows, heads, head_width, tiles * TILE), E4M3),
            *((size, torch.float32) for size in (scales, scales, means, means)),
        )
        lengths = [math.prod(size) * dtype.itemsize for size, dtype in kinds]
        parts = torch.zeros(sum(lengths), dtype=torch.uint8, device=device).split(lengths)
        packed = QuantisedKV(
            *(part.view(dtype).view(size) for part, (size, dtype) in zip(parts, kinds, strict=True))
        )
        packed.k_scales_RNT.fill_(LEAST_SCALE)
        packed.v_scales_RNT.fill_(LEAST_SCALE)
        return packed

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def rows(self, part: slice) -> QuantisedKV:
        """Return some of the rows, as views of the same memory."""
        return QuantisedKV(*(tensor[part] for tensor in self.tensors))


@dataclass(frozen=True, slots=True)
class PackedQueries:
    """Packed queries of a chunk: numbers [..., N, H] in int8 as keys are, and a scale for each query of each
    head."""

    numbers: Tensor
    scales: Tensor

    @staticmethod
    def of(q: Tensor) -> PackedQueries:
        return PackedQueries(*rounded(q.float(), (q.dim() - 1,), torch.int8))


def rounded(x: Tensor, over: tuple[int, ...], kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of this kind, and what each set of them, `over` these dimensions, was divided by."""
    largest = LARGEST_KEY if kind == torch.int8 else LARGEST
    scales = (x.abs().amax(over, keepdim=True) / largest).clamp_min(LEAST_SCALE)
    numbers = x * (1 / scales)
    return (numbers.round() if kind == torch.int8 else numbers).to(kind), scales.squeeze(over)
