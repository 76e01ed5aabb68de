"""Trees, rocks and houses: which stand in which cell of the plane. A function of the world and the cell, so a
wood has no end and takes no memory.

Where a walk begins, and between there and its things, nothing stands: `Clearing`.
Shapes: N rows, C cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.train.data.light import constant
from millstream.train.data.vocabulary import SETTINGS
from millstream.train.data.walk.noise import TILE, Places, hash_cells, uniform, value_noise
from millstream.train.data.walk.terrain import Height

TREE_CELL = 8.0
"""Metres; at most one tree, rock or cactus in each cell."""
HOUSE_CELL = 32.0
STREET_HALF = 5.0
"""Half the width of a city's streets, which run along the borders of house cells."""
FIR, ROUND, ROCK, CACTUS = range(4)

_DENSITY = {"hills": 0.10, "sea": 0.10, "desert": 0.05, "city": 0.0, "forest": 0.72, "space": 0.0}
"""Share of cells with a tree where trees are, before groves thin them out."""
_GROVES = {"hills": 1.0, "sea": 0.6, "desert": 0.3, "city": 0.0, "forest": 0.35, "space": 0.0}
"""Pull of groves on trees, 0 to 1."""
_HOUSES = {"hills": 0.10, "sea": 0.10, "desert": 0.0, "city": 0.88, "forest": 0.02, "space": 0.0}
"""Share of house cells with a house."""
_KINDS = {  # firs, round trees and rocks up to so much; what is left are cacti
    "hills": (0.25, 0.93, 1.0), "sea": (0.15, 0.6, 1.0), "desert": (0.0, 0.0, 0.45), "city": (0.0, 1.0, 1.0),
    "forest": (0.72, 0.97, 1.0), "space": (0.0, 0.0, 1.0),
}  # fmt: skip
CITY = SETTINGS.index("city")


class Clearing(NamedTuple):
    """Lines on the ground that nothing stands on, as wide as they say. All [N, L], metres from the tile."""

    x0: Tensor
    z0: Tensor
    x1: Tensor
    z1: Tensor
    half: Tensor

    def distance(self, x: Tensor, z: Tensor) -> Tensor:
        """From places [N, C] to the edge of the nearest line; negative within."""
        dx = (self.x1 - self.x0)[:, :, None]
        dz = (self.z1 - self.z0)[:, :, None]
        u = x[:, None] - self.x0[:, :, None]
        v = z[:, None] - self.z0[:, :, None]
        along = ((u * dx + v * dz) / (dx.square() + dz.square()).clamp(min=1e-6)).clamp(0, 1)
        far = ((u - dx * along).square() + (v - dz * along).square()).sqrt() - self.half[:, :, None]
        return far.amin(dim=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trees:
    """One a cell; all [N, C]."""

    there: Tensor
    x: Tensor
    z: Tensor
    kind: Tensor
    """FIR, ROUND, ROCK or CACTUS, int32."""
    tall: Tensor
    """Metres."""
    wide: Tensor
    """Radius of the crown."""
    trunk: Tensor
    """Radius that stops a walker."""
    lot: Tensor
    """0 to 1, for colours and shapes."""
    word: Tensor
    """int32: more of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Houses:
    """One a cell; all [N, C]."""

    there: Tensor
    x: Tensor
    z: Tensor
    half_x: Tensor
    half_z: Tensor
    tall: Tensor
    """Height of the walls, metres."""
    roof: Tensor
    """Height of the gable; 0 where the roof is flat."""
    turn: Tensor
    """Radians, to the right."""
    lot: Tensor
    word: Tensor


def cells_around(places: Places, size: float, radius: float) -> tuple[Tensor, Tensor]:
    """Cells within a square around the one place of each row, [N, C] in int32."""
    count = int(radius / size)
    per_tile = round(TILE / size)
    steps = torch.arange(-count, count + 1, dtype=torch.int32, device=places.x.device)
    row = steps.repeat_interleave(len(steps))
    column = steps.repeat(len(steps))
    across = (places.x / size).floor().to(torch.int32) + places.tile[:, :1] * per_tile
    along = (places.z / size).floor().to(torch.int32) + places.tile[:, 1:] * per_tile
    return across + column, along + row


def trees_in(
    across: Tensor, along: Tensor, tile: Tensor, seed: Tensor, setting: Tensor, clearing: Clearing
) -> Trees:
    """Return the trees in cells [N, C] of `TREE_CELL`. Water and paths are for the caller to heed."""
    word = hash_cells(across, along, (seed ^ 0x51ED270B)[:, None])
    x, z = _middle(across, along, tile, TREE_CELL)
    dtype = clearing.x0.dtype
    x = (x + (uniform(word, 1) - 0.5) * 0.62 * TREE_CELL).to(dtype)
    z = (z + (uniform(word, 2) - 0.5) * 0.62 * TREE_CELL).to(dtype)
    grove = value_noise(Places(x, z, tile, seed), 128.0, 21) + 0.5 * value_noise(
        Places(x, z, tile, seed), 32.0, 22
    )
    table = _by_setting(setting)
    share = table[:, 0, None] * (1 + table[:, 1, None] * 3.0 * grove).clamp(0, 4)
    lot = uniform(word, 3)
    size = uniform(word, 4)
    pick = uniform(word, 5)
    kind = sum(((pick >= table[:, 3 + i, None]).to(torch.int32) for i in range(3)), torch.zeros_like(word))
    tall = _pick(kind, (6.5, 5.2, 1.1, 3.2)) * (0.7 + 0.75 * size)
    wide = _pick(kind, (1.7, 2.3, 1.3, 0.34)) * (0.75 + 0.5 * size)
    trunk = _pick(kind, (0.35, 0.4, 1.25, 0.5)) * (0.75 + 0.5 * size)
    there = (uniform(word) < share) & (clearing.distance(x, z) > 0.6 * wide)
    return Trees(there=there, x=x, z=z, kind=kind, tall=tall, wide=wide, trunk=trunk, lot=lot, word=word)


def houses_in(
    across: Tensor, along: Tensor, tile: Tensor, seed: Tensor, setting: Tensor, clearing: Clearing
) -> Houses:
    """Return the houses in cells [N, C] of `HOUSE_CELL`."""
    word = hash_cells(across, along, (seed ^ 0x3C6EF372)[:, None])
    x, z = _middle(across, along, tile, HOUSE_CELL)
    city = (setting == CITY)[:, None].expand_as(word)
    dtype = clearing.x0.dtype
    jitter = torch.where(city, 0.0, 9.0)
    x = (x + (uniform(word, 1) - 0.5) * jitter).to(dtype)
    z = (z + (uniform(word, 2) - 0.5) * jitter).to(dtype)
    size = uniform(word, 3)
    lot = uniform(word, 4)
    half_x = torch.where(city, 8.0 + 2.4 * uniform(word, 5), 3.4 + 1.6 * uniform(word, 5))
    half_z = torch.where(city, 8.0 + 2.4 * uniform(word, 6), 2.8 + 1.0 * uniform(word, 6))
    tall = torch.where(city, 7.0 + 26.0 * size * size, 2.7 + 1.6 * size)
    flat = city & (uniform(word, 7) < 0.7)
    roof = torch.where(flat, 0.0, half_z * (0.55 + 0.3 * lot))
    turn = torch.where(city, 0.0, (uniform(word, 8) * 2 - 1) * 1.5)
    reach = torch.maximum(half_x, half_z) * torch.where(city, 1.05, 1.2)
    there = (uniform(word) < _by_setting(setting)[:, 2, None]) & (clearing.distance(x, z) > reach + 1.0)
    return Houses(
        there=there,
        x=x,
        z=z,
        half_x=half_x,
        half_z=half_z,
        tall=tall,
        roof=roof,
        turn=turn,
        lot=lot,
        word=word,
    )


def _middle(across: Tensor, along: Tensor, tile: Tensor, size: float) -> tuple[Tensor, Tensor]:
    per_tile = round(TILE / size)
    x = (across - tile[:, :1] * per_tile).double() + 0.5
    z = (along - tile[:, 1:] * per_tile).double() + 0.5
    return x * size, z * size


def _by_setting(setting: Tensor) -> Tensor:
    """[N, 6]: density, groves, houses, and the three steps of kinds."""
    rows = tuple(
        number
        for name in SETTINGS
        for number in (_DENSITY[name], _GROVES[name], _HOUSES[name], *_KINDS[name])
    )
    return constant(rows, setting.device).view(len(SETTINGS), 6)[setting]


def _pick(kind: Tensor, values: tuple[float, ...]) -> Tensor:
    return constant(values, kind.device)[kind]


def grown(found: Trees | Houses, land: Height) -> Tensor:
    """[N, C]: which of them stand: not in water, not on a path."""
    wide = found.wide if isinstance(found, Trees) else found.half_x
    return found.there & (land.y > 0.6) & (land.path > 1.0 + 0.7 * wide)


def inside(houses: Houses, x: Tensor, z: Tensor, margin: float) -> Tensor:
    """[N, C]: houses that have places [N, 1] within their walls, or nearer than a margin."""
    u = x - houses.x
    v = z - houses.z
    across = (u * houses.turn.cos() + v * houses.turn.sin()).abs()
    along = (v * houses.turn.cos() - u * houses.turn.sin()).abs()
    return (across < houses.half_x + margin) & (along < houses.half_z + margin)
