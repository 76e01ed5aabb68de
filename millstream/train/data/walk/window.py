"""Land around a walker, baked once for all frames that are near: a stack of grids, fine ones within coarse.

Grids lie on whole metres of the world, so where a walker stands changes nothing about the land he sees.
Shapes: W windows, N frames, P places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from millstream.train.data.walk.noise import TILE, Places
from millstream.train.data.walk.terrain import Height, height_of

CELLS = (1.0, 4.0, 16.0)
"""Metres between points, of each grid."""
SIDE = 256
"""Points of a grid along each side."""
SNAP = 64.0
"""Windows stand around multiples of this, metres."""
REACH = CELLS[-1] * (SIDE / 2 - 1) - SNAP
"""Distance that a window certainly reaches, metres."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LandWindow:
    """Heights, slopes and paths of the land around N frames."""

    baked: Tensor
    """[W, 4, grids * SIDE, SIDE]"""
    index: Tensor
    """[N]: which window a frame looks into."""
    x: Tensor
    """[N]: middle of the window, in metres from the frame's tile."""
    z: Tensor

    def height(self, x: Tensor, z: Tensor) -> Height:
        """Land at places [N, P], metres from the frame's tile."""
        u = x - self.x[:, None]
        v = z - self.z[:, None]
        far = torch.maximum(u.abs(), v.abs())
        edges = [cell * (SIDE / 2 - 1) for cell in CELLS[:-1]]
        grid = sum(((far > edge).to(u.dtype) for edge in edges), torch.zeros_like(u))
        scale = torch.full_like(u, 1 / CELLS[0])
        for edge, cell in zip(edges, CELLS[1:], strict=True):
            scale = torch.where(far > edge, 1 / cell, scale)
        last = SIDE / 2 - 1
        column = (u * scale).clamp(-last, last) + SIDE / 2
        row = (v * scale).clamp(-last, last) + SIDE / 2 + grid * SIDE
        # to grid_sample, point 0 lies half a step within the edge, which is at -1
        places = torch.stack(((column * 2 + 1) / SIDE - 1, (row * 2 + 1) / (SIDE * len(CELLS)) - 1), dim=-1)
        found = grid_sample(self.baked[self.index], places[:, None], align_corners=False)[:, :, 0]
        return Height(*found.unbind(1))


def windows_around(
    x_N: Tensor, z_N: Tensor, row_N: Tensor, tile_N2: Tensor, seed: Tensor, setting: Tensor
) -> tuple[LandWindow, Tensor, Tensor]:
    """Windows for frames at x, z (float64, on the CPU) of scenes `row_N`, whose worlds and settings are given
    on the device; `tile_N2` (on the CPU) is what each frame counts its metres from.

    With it, on the CPU, the scene of each window [W] and its middle [W, 2] in metres of the world."""
    middles = torch.stack((x_N, z_N), dim=1).div(SNAP).round().mul(SNAP)
    keys = torch.cat((row_N[:, None].double(), middles), dim=1)
    rows, index = keys.unique(dim=0, return_inverse=True)
    device = seed.device
    scene = rows[:, 0].long().to(device)
    corner = rows[:, 1:].div(TILE).floor()
    local = (rows[:, 1:] - corner * TILE).float().to(device)
    tile = corner.to(torch.int32).to(device)
    step = len(rows) if device.type == "cuda" else 1  # one window stays in a CPU's cache
    baked = [
        _bake(local[part], tile[part], seed[scene[part]], setting[scene[part]])
        for part in (slice(i, i + step) for i in range(0, len(rows), step))
    ]
    middle = (middles - tile_N2 * TILE).float().to(device)
    window = LandWindow(baked=torch.cat(baked), index=index.to(device), x=middle[:, 0], z=middle[:, 1])
    return window, rows[:, 0].long(), rows[:, 1:]


def _bake(local: Tensor, tile: Tensor, seed: Tensor, setting: Tensor) -> Tensor:
    """Grids around middles [W, 2]: [W, 4, grids * SIDE, SIDE]."""
    steps = torch.arange(SIDE, device=local.device) - SIDE / 2
    grids = []
    for cell in CELLS:
        x = (local[:, :1] + steps * cell)[:, None, :].expand(-1, SIDE, -1).flatten(1)
        z = (local[:, 1:] + steps * cell)[:, :, None].expand(-1, -1, SIDE).flatten(1)
        footprint = torch.full_like(x, cell * 0.8)
        land = height_of(Places(x, z, tile, seed), setting, footprint)
        grids.append(torch.stack(land, dim=1).unflatten(2, (SIDE, SIDE)))
    return torch.cat(grids, dim=2)
