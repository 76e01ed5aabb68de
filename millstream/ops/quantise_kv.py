"""Keys and values of a window into 8 bits (`ops/quantised_kv.py`). Triton on a GPU, plain torch elsewhere.

Knows no frames and no sessions: only where runs of keys begin.
Shapes: R rows (layers, sessions), W places, N heads, H head width, F runs of places.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.ops.backend import runs_kernels
from millstream.ops.fp8 import E4M3
from millstream.ops.quantised_kv import TILE, QuantisedKV, rounded


def pack_runs(packed: QuantisedKV, k_RWNH: Tensor, v_RWNH: Tensor, starts_F: Tensor, length: int) -> None:
    """Pack every tile that a run touches: runs begin at `starts` and are `length` long. What is there is [R,
    W, N, H]; places past W are zeros to attention, whatever memory holds."""
    assert k_RWNH.shape == v_RWNH.shape, f"keys {tuple(k_RWNH.shape)} and values {tuple(v_RWNH.shape)}"
    if runs_kernels(k_RWNH):
        from millstream.ops.kernels.quantise_kv import launch_pack_runs

        return launch_pack_runs(packed, k_RWNH, v_RWNH, starts_F, length)
    places = (starts_F[:, None] + torch.arange(length, device=starts_F.device)).flatten()
    for tile in torch.unique(places // TILE).tolist():
        part = slice(tile * TILE, min((tile + 1) * TILE, k_RWNH.shape[1]))
        room = slice(tile * TILE, (tile + 1) * TILE)
        k = k_RWNH[:, part].float() - packed.k_mean_RNH[:, None]
        v = v_RWNH[:, part].float() - packed.v_mean_RNH[:, None]
        numbers, packed.k_scales_RNT[..., tile] = rounded(k, (1, 3), torch.int8)
        packed.k_RWNH[:, room] = _filled(numbers)
        numbers, packed.v_scales_RNT[..., tile] = rounded(v, (1, 3), E4M3)
        packed.vt_RNHW[..., room] = _filled(numbers).permute(0, 2, 3, 1)
    return None


def _filled(x_RWNH: Tensor) -> Tensor:
    """Fill up to a whole tile, with zeros at its end."""
    whole = x_RWNH.new_zeros(len(x_RWNH), TILE, *x_RWNH.shape[2:])
    whole[:, : x_RWNH.shape[1]] = x_RWNH
    return whole
