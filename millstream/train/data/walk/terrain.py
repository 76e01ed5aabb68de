"""Height of the land at any place, and how it slopes: what every other part of a walk asks for.

Water stands at height 0; desert and city lie far above it. A path is where a slow noise is zero, so it winds
on without end and never stops.
Shapes as in `noise`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.train.data.vocabulary import SETTINGS
from millstream.train.data.walk.noise import Noise, Places, gradient_noise

WAVELENGTHS = (1024.0, 512.0, 256.0, 128.0, 64.0, 32.0, 16.0)
"""Metres, of the noises that make up the height."""
RIDGED = 64.0
"""Wavelength of dunes."""
PATHS = 128.0
"""Wavelength of the noise whose zeros are paths."""
PATH_HALF = 0.9
"""Half the width of a path, metres."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Land:
    """Shape of one setting's land."""

    base: float
    """Mean height, metres."""
    heights: tuple[float, ...]
    """Height of each noise, metres."""
    dunes: float = 0.0
    """Height of ridges."""
    paths: float = 1.0
    """1 where there are paths, 0 where there are none."""


LANDS = {
    "hills": Land(base=13.0, heights=(34.0, 30.0, 15.0, 7.0, 2.6, 0.7, 0.16)),
    "sea": Land(base=-7.0, heights=(30.0, 20.0, 9.0, 4.0, 1.4, 0.4, 0.1), paths=0.0),
    "desert": Land(base=150.0, heights=(40.0, 26.0, 11.0, 4.0, 0.8, 0.35, 0.1), dunes=7.0, paths=0.0),
    "city": Land(base=80.0, heights=(14.0, 7.0, 2.0, 0.4, 0.0, 0.0, 0.0), paths=0.0),
    "forest": Land(base=16.0, heights=(24.0, 20.0, 10.0, 4.5, 1.8, 0.7, 0.2)),
    "space": Land(base=60.0, heights=(0.0,) * 7, paths=0.0),
}
"""By setting. Nobody walks in space: its land only fills a row."""


class Height(NamedTuple):
    """Land at places; all [N, P], in metres."""

    y: Tensor
    dx: Tensor
    """Slope of the land, metres a metre."""
    dz: Tensor
    path: Tensor
    """About how far the nearest path is; huge where there are none."""


@lru_cache(maxsize=8)
def _table(device: torch.device) -> Tensor:
    """[setting, 10]: heights of the noises, dunes, base, paths."""
    rows = [(*land.heights, land.dunes, land.base, land.paths) for land in (LANDS[name] for name in SETTINGS)]
    return torch.tensor(rows, device=device)


def height_of(places: Places, setting: Tensor, footprint: Tensor | None = None) -> Height:
    """Height at places of lands whose settings are [N].

    `footprint` [N, P], metres that one pixel covers, takes out of the slope what a pixel is too coarse for:
    light on far hills then stays calm while one walks. Heights stay as they are.
    """
    rows = _table(setting.device)[setting].to(places.x.dtype)[:, :, None]
    noises = gradient_noise(places, WAVELENGTHS)
    y = rows[:, -2].expand_as(places.x)
    dx = torch.zeros_like(places.x)
    dz = torch.zeros_like(places.x)
    keep = torch.ones_like(places.x)
    parts = [Noise(*part) for part in zip(*noises, strict=True)]
    near = parts[WAVELENGTHS.index(PATHS)]
    parts.append(_ridge(parts[WAVELENGTHS.index(RIDGED)]))
    for number, (value, slope_x, slope_z) in enumerate(parts):
        weight = rows[:, number]
        y = torch.addcmul(y, weight, value)
        if footprint is not None:
            wavelength = (*WAVELENGTHS, RIDGED)[number]
            keep = (wavelength / footprint * 0.25 - 0.5).clamp(0, 1)
        dx = torch.addcmul(dx, weight * keep, slope_x)
        dz = torch.addcmul(dz, weight * keep, slope_z)
    path = near.value.abs() / (near.dx.square() + near.dz.square() + 1e-6).sqrt()
    return Height(y, dx, dz, path + (1 - rows[:, -1]) * 1e6)


def _ridge(noise: Noise) -> Noise:
    """Fold a noise at zero, a little rounded: 1 on the crest, about -1 in valleys."""
    rounded = (noise.value.square() + 0.004).sqrt()
    slope = -2.4 * noise.value / rounded
    return Noise(1 - 2.4 * rounded, slope * noise.dx, slope * noise.dz)


def normal_of(height: Height) -> tuple[Tensor, Tensor, Tensor]:
    """Unit normal of the land: east, up, south."""
    up = (1 + height.dx.square() + height.dz.square()).rsqrt()
    return -height.dx * up, up, -height.dz * up
