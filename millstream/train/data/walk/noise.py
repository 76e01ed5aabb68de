"""Noise at any place of an endless plane, by hashing whole numbers: nothing is stored and nothing repeats.

A place is a tile (whole numbers, `TILE` metres wide) and metres within it, so that float32 is exact enough
however far one walks. Wavelengths are powers of two, so every tile holds whole cells of every noise.
Shapes: N rows (frames or scenes), P places of each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.train.data.light import constant

TILE = 1024.0
"""Metres; no wavelength is longer."""
_ACROSS = 0x27D4EB2D
_ALONG = 0x165667B1


class Places(NamedTuple):
    """Places on the plane: x to the east, z to the south."""

    x: Tensor
    """Metres from the tile's corner [N, P]; may lie outside the tile."""
    z: Tensor
    tile: Tensor
    """[N, 2] in int32: across and along."""
    seed: Tensor
    """[N] in int32: which world."""


class Noise(NamedTuple):
    """A noise of about -1 to 1 and its slope, per metre; all [N, P]."""

    value: Tensor
    dx: Tensor
    dz: Tensor


def place_of(x: Tensor, z: Tensor, seed: Tensor, dtype: torch.dtype = torch.float32) -> Places:
    """Places [N, P] from metres in float64; their tile is that of the first of each row."""
    assert x.dtype == z.dtype == torch.float64, f"metres of the world are float64, got {x.dtype}"
    corner = torch.stack((x[:, 0], z[:, 0]), dim=1).div(TILE).floor()
    local_x = (x - corner[:, :1] * TILE).to(dtype)
    local_z = (z - corner[:, 1:] * TILE).to(dtype)
    return Places(local_x, local_z, corner.to(torch.int32), seed)


def mix(word: Tensor) -> Tensor:
    """Scramble int32 words; products wrap."""
    word = (word ^ ((word >> 15) & 0x1FFFF)) * 0x2C1B3C6D
    word = (word ^ ((word >> 12) & 0xFFFFF)) * 0x297A2D39
    return word ^ ((word >> 15) & 0x1FFFF)


def hash_cells(across: Tensor, along: Tensor, seed: Tensor | int) -> Tensor:
    """One int32 word for each cell."""
    return mix((across * _ACROSS) ^ (along * _ALONG) ^ seed)


def uniform(word: Tensor, number: int = 0) -> Tensor:
    """Uniform in [0, 1) out of a word; every `number` gives another, with no bits shared."""
    return ((mix(word + 0x3504F333 * number) >> 8) & 0xFFFF).float() * (1 / 65536)


def cells_of(places: Places, size: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cells of `size` metres: across and along [N, P] in int32, and where in it a place lies, 0 to 1."""
    per_tile = round(TILE / size)
    assert math.isclose(per_tile * size, TILE), f"{size} m do not divide a tile of {TILE} m"
    u = places.x * (1 / size)
    v = places.z * (1 / size)
    column = u.floor()
    row = v.floor()
    across = column.to(torch.int32) + places.tile[:, :1] * per_tile
    along = row.to(torch.int32) + places.tile[:, 1:] * per_tile
    return across, along, u - column, v - row


def gradient_noise(places: Places, wavelengths: tuple[float, ...]) -> Noise:
    """Gradient noises of several wavelengths with their exact slopes: smooth to the second derivative.
    Each [O, N, P]."""
    device = places.x.device
    dtype = places.x.dtype
    scale = constant(tuple(1 / wavelength for wavelength in wavelengths), device).to(dtype)[:, None, None]
    per_tile = constant(tuple(TILE / wavelength for wavelength in wavelengths), device).int()[:, None, None]
    salt = constant(tuple(float(round(wavelength * 16)) for wavelength in wavelengths), device).int()
    seed = places.seed[:, None] ^ (salt * 0x2545F491)[:, None, None]
    u = places.x * scale
    v = places.z * scale
    column = u.floor()
    row = v.floor()
    left = (column.to(torch.int32) + places.tile[:, :1] * per_tile) * _ACROSS
    upper = (row.to(torch.int32) + places.tile[:, 1:] * per_tile) * _ALONG
    u = u - column
    v = v - row
    right = left + _ACROSS
    lower = (upper + _ALONG) ^ seed
    upper = upper ^ seed
    a, ax, az = _corner(left ^ upper, u, v)
    b, bx, bz = _corner(right ^ upper, u - 1, v)
    c, cx, cz = _corner(left ^ lower, u, v - 1)
    d, dx, dz = _corner(right ^ lower, u - 1, v - 1)
    su = u * u * u * (u * (u * 6 - 15) + 10)
    sv = v * v * v * (v * (v * 6 - 15) + 10)
    du = (u * (u - 1)).square() * 30
    dv = (v * (v - 1)).square() * 30
    ba = b - a
    ca = c - a
    cross = a - b - c + d
    suv = su * sv
    value = a + su * ba + sv * ca + suv * cross
    slope_x = ax + su * (bx - ax) + sv * (cx - ax) + suv * (ax - bx - cx + dx) + du * (ba + sv * cross)
    slope_z = az + su * (bz - az) + sv * (cz - az) + suv * (az - bz - cz + dz) + dv * (ca + su * cross)
    return Noise(value * 1.6, slope_x * (1.6 * scale), slope_z * (1.6 * scale))


def _corner(word: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    word = mix(word)
    gx = (word >> 16).to(u.dtype) * (1 / 32768)
    gz = ((word << 16) >> 16).to(u.dtype) * (1 / 32768)
    return gx * u + gz * v, gx, gz


def value_noise(places: Places, wavelength: float, salt: int) -> Tensor:
    """A cheaper noise of -1 to 1, for paint [N, P]."""
    across, along, u, v = cells_of(places, wavelength)
    seed = (places.seed[:, None] + 0x2545F491 * salt & 0x7FFFFFFF).to(torch.int32)
    left = across * _ACROSS
    upper = along * _ALONG
    upper, lower = upper ^ seed, (upper + _ALONG) ^ seed
    right = left + _ACROSS
    a = mix(left ^ upper).to(u.dtype)
    b = mix(right ^ upper).to(u.dtype)
    c = mix(left ^ lower).to(u.dtype)
    d = mix(right ^ lower).to(u.dtype)
    u = u * u * (3 - 2 * u)
    v = v * v * (3 - 2 * v)
    top = a + (b - a) * u
    return (top + (c + (d - c) * u - top) * v) * 2.0**-31


def ripples(places: Places, time: Tensor, footprint: Tensor) -> tuple[Tensor, Tensor]:
    """Slope of water's surface, across and along [N, P]: waves that repeat at a tile's border, shorter than
    twice the `footprint` (metres) left out."""
    slope_x = torch.zeros_like(places.x)
    slope_z = torch.zeros_like(places.x)
    for kx, kz, speed, height, length in _WAVES:
        angle = places.x * kx + places.z * kz - time * speed
        fade = (length / footprint * 0.5 - 1).clamp(0, 1)
        swing = angle.cos() * fade * height
        slope_x = slope_x + swing * kx
        slope_z = slope_z + swing * kz
    return slope_x, slope_z


def _wave(number: int) -> tuple[float, float, float, float, float]:
    """Wave vector, angular speed, height and length of one wave; whole waves in a tile."""
    length = 9.0 * 0.72**number
    angle = 0.7 + 2.39996 * number * 0.55
    turns_x = round(TILE / length * math.cos(angle))
    turns_z = round(TILE / length * math.sin(angle))
    kx = 2 * math.pi * turns_x / TILE
    kz = 2 * math.pi * turns_z / TILE
    length = 2 * math.pi / math.hypot(kx, kz)
    return kx, kz, math.sqrt(9.81 * 2 * math.pi / length), 0.008 * length, length


_WAVES = tuple(_wave(number) for number in range(9))
