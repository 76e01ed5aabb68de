"""Tools of the painter: the pixel grid of a batch of frames, random tables, soft edges, and fields of waves.

Shapes: N frames (clips times moments, in one batch), H height, W width. A colour is [N, 3, 1, 1], a mask [N,
1, H, W]; what varies along one side only stays [N, 1, 1, W] or [N, 1, H, 1], which costs next to nothing.
Lengths are in picture heights: y runs 0 to 1 downwards, x from 0 to the aspect ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

TABLE_SIDE = 256


class Tag(NamedTuple):
    """Attributes that decide which layers a frame needs."""

    setting: int
    time: int
    weather: int
    rails: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldView:
    """Values needed to paint N frames. Names of `Scenes` are columns of `values`."""

    values: Tensor
    """[N, columns]"""
    columns: dict[str, int]
    height: int
    width: int
    tags: tuple[Tag, ...] = ()
    """Tags of the frames on the host, so that the device need not be asked; only backdrops need them."""

    def get(self, name: str) -> Tensor:
        """[N, 1, 1, 1]"""
        return self.values[:, self.columns[name], None, None, None]

    def __getitem__(self, part: slice) -> FieldView:
        return replace(self, values=self.values[part], tags=self.tags[part])

    def rows(self, rows: Tensor, tags: tuple[Tag, ...] = ()) -> FieldView:
        return replace(self, values=self.values[rows], tags=tags)

    def spans(self, wanted: Callable[[Tag], bool]) -> list[slice]:
        """Return the runs of neighbouring frames whose tags are `wanted`."""
        found: list[slice] = []
        for i, tag in enumerate(self.tags):
            if wanted(tag):
                joins = bool(found) and found[-1].stop == i
                found[-1:] = [slice(found[-1].start, i + 1)] if joins else [*found[-1:], slice(i, i + 1)]
        return found

    def __len__(self) -> int:
        return len(self.values)

    @property
    def pixel(self) -> float:
        return 1.0 / self.height

    @property
    def aspect(self) -> float:
        return self.width / self.height

    @property
    def x(self) -> Tensor:
        """[1, 1, 1, W]: middles of the pixels."""
        return _middles(self.width, self.pixel, self.values.device)

    @property
    def y(self) -> Tensor:
        """[1, 1, H, 1]"""
        return _middles(self.height, self.pixel, self.values.device).mT

    def scrolled(self, depth: float) -> Tensor:
        """x in the world of a layer; 1 moves with the camera's full speed, 0 stands still. [N, 1, 1, W]"""
        return self.x + self.get("travel") * depth + self.get("grain") * (0.37 + depth)


@lru_cache(maxsize=32)
def _middles(count: int, pixel: float, device: torch.device) -> Tensor:
    return ((torch.arange(count, device=device) + 0.5) * pixel)[None, None, None, :]


@lru_cache(maxsize=8)
def table(device: torch.device) -> Tensor:
    """Uniform numbers, the same on every device: [4, TABLE_SIDE * TABLE_SIDE]."""
    generator = torch.Generator().manual_seed(1871)
    return torch.rand(4, TABLE_SIDE * TABLE_SIDE, generator=generator).to(device)


def chance(column: Tensor, row: Tensor | int = 0) -> tuple[Tensor, ...]:
    """Four random numbers for each cell (column, row), whole numbers held in floats."""
    side = TABLE_SIDE
    index = row % side * side + column.remainder(side)
    return table(column.device)[:, index.long()].unbind(0)


def smooth(low: float | Tensor, high: float | Tensor, value: Tensor) -> Tensor:
    """0 below `low`, 1 above `high`, and an S between."""
    t = ((value - low) / (high - low)).clamp_(0, 1)
    return t * t * (3 - 2 * t)


def below(edge: Tensor | float, y: Tensor, softness: float) -> Tensor:
    """1 under an edge, 0 above, with a ramp `softness` wide."""
    return ((y - edge) / softness + 0.5).clamp_(0, 1)


def line(
    x: Tensor, *, scale: float, octaves: int = 4, time: Tensor | None = None, rough: float = 0.5
) -> Tensor:
    """Smooth noise along one side: sines whose frequencies share no period, roughly within -1 to 1."""
    frequency, shift, drift, weight = _sines(x.device, scale, octaves, rough)
    angle = x[..., None] * frequency + shift
    if time is not None:
        angle = angle + time[..., None] * drift
    return angle.sin() @ weight


@lru_cache(maxsize=256)
def _sines(device: torch.device, scale: float, octaves: int, rough: float) -> tuple[Tensor, ...]:
    """Frequencies, shifts, drifts and weights of `line`, one an octave each."""
    octave = torch.arange(octaves, dtype=torch.float32)
    weight = rough**octave
    parts = torch.stack((scale * 1.87**octave, 1.7 * octave, 0.6 + 0.37 * octave, weight / weight.sum()))
    return parts.to(device).unbind(0)


@lru_cache(maxsize=32)
def _plane_waves(
    device: torch.device, scale: float, octaves: int, stretch: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Frequencies along x and y, and weights, of four waves an octave in scattered directions."""
    angles = torch.arange(4 * octaves) * 2.39996
    frequency = scale * 1.75 ** (torch.arange(4 * octaves) / 4)
    weight = frequency**-0.95
    weight = weight / (weight.square().sum() / 2).sqrt()
    fx = frequency * angles.cos()
    fy = frequency * angles.sin() * stretch
    return fx.to(device), fy.to(device), weight.to(device)


def waves(
    x: Tensor, y: Tensor, *, scale: float, octaves: int = 4, stretch: float = 1.0, time: Tensor | None = None
) -> Tensor:
    """A field of plane waves with variance 1, like clouds: [N, 1, H, W] from x [N, 1, 1, W] and y [., 1, H,
    1].

    sin(a + b) = sin a cos b + cos a sin b, so the sum over all waves is one product of small matrices.
    `stretch` above 1 flattens the features; `time` makes them change shape.
    """
    fx, fy, weight = _plane_waves(x.device, scale, octaves, stretch)
    across = x.flatten(1)[:, None, :] * fx[None, :, None]  # [N, K, W]
    if time is not None:
        drift = torch.linspace(0.3, 1.1, len(fx), device=x.device) * time.flatten(1)
        across = across + drift[:, :, None]
    down = y.flatten(1)[:, :, None] * fy  # [., H, K]
    left = torch.cat((down.cos() * weight, down.sin() * weight), dim=2)
    right = torch.cat((across.sin(), across.cos()), dim=1)
    return (left.expand(len(right), -1, -1) @ right)[:, None]


def specks(
    x: Tensor, y: Tensor, *, radius: float, share: float, wobble: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Soft dots, at most one in each unit cell of the plane; `share` of the cells have one.

    Gives the dots' strength [N, 1, H, W] and one more random number a cell, for colour or twinkling.
    """
    column = x.floor()
    row = y.floor()
    right, down, kind, rank = chance(column, row)
    u = x - column - 0.3 - 0.4 * right
    v = y - row - 0.3 - 0.4 * down
    if wobble is not None:
        u = u + 0.2 * torch.sin(wobble + 6.283 * kind)
    size = radius * (0.55 + 0.45 * rank)
    dot = torch.exp((u.square() + v.square()) * (-1.0 / size.square()))
    return dot * (rank > 1 - share), kind


def turn(x: Tensor, y: Tensor, angle: Tensor | float) -> tuple[Tensor, Tensor]:
    """Coordinates seen by something turned by `angle`."""
    if isinstance(angle, Tensor):
        return x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    return x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
