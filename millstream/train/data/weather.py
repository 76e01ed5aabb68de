"""Rain, snow and fog: layers that move without a jump. Clouds and aurora belong to the sky.
Shapes as in `fields`."""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.train.data.fields import FieldView, chance, smooth, specks, waves
from millstream.train.data.light import Light, colour


def rain(view: FieldView, light: Light, image: Tensor) -> Tensor:
    """Two depths of slanted streaks over a slight grey."""
    image = torch.lerp(image, light.grey, 0.12)
    drop = (light.grey * 0.5 + 0.5).clamp(max=1)
    slant = 0.16 * view.get("direction")
    for layer, (width, length, speed, strength) in enumerate(
        ((0.024, 0.20, 1.7, 0.30), (0.050, 0.34, 2.5, 0.48))
    ):
        x = (view.scrolled(0.3 + 0.5 * layer) + slant * view.y) / width
        column = x.floor()
        shift, _, bright, place = chance(column, 140 + layer)
        y = view.y / length - speed / length * view.get("t") * 0.55 + 31 * shift
        along = y - y.floor()
        across = (x - column - 0.3 - 0.4 * place).abs() * width
        streak = smooth(0.2, 0.62, along) * smooth(0.70, 0.62, along)
        thin = (1 - across / (1.15 * view.pixel + 0.0006)).clamp_(0, 1)
        image = torch.lerp(image, drop, thin * streak * (strength * (0.5 + 0.5 * bright)))
    return image


def snow(view: FieldView, light: Light, image: Tensor) -> Tensor:
    """Three depths of flakes, the near ones larger and faster."""
    time = view.get("t")
    flake = torch.lerp(light.ambient, colour(1, 1, 1, like=image), 0.75)
    for layer, (density, speed, strength) in enumerate(
        ((20.0, 0.10, 0.7), (12.0, 0.16, 0.85), (7.0, 0.24, 0.95))
    ):
        x = (view.scrolled(0.25 + 0.35 * layer) + 0.015 * torch.sin(0.7 * time + layer)) * density
        y = (view.y - speed * time) * density + 40 * layer
        dots, _ = specks(x, y, radius=0.145 - 0.02 * layer, share=0.4 - 0.08 * layer, wobble=1.3 * time)
        image = torch.lerp(image, flake, dots * strength)
    return image


def white_ground(view: FieldView, light: Light, line: Tensor, image: Tensor) -> Tensor:
    """Snow that has settled: below `line` the land turns white."""
    return torch.lerp(image, light.ambient, 0.8 * smooth(0.0, 0.1, view.y - line))


def fog(view: FieldView, light: Light, image: Tensor, *, low: float, high: float) -> Tensor:
    """Banks that drift past, thick near the ground (`low`), thin in the sky (`high`)."""
    veil = torch.lerp(light.haze, light.grey * 1.1, 0.75).clamp(max=1)
    x = view.scrolled(0.4) + 0.03 * view.get("t")
    banks = waves(x, view.y, scale=4.0, octaves=3, stretch=2.5, time=0.2 * view.get("t"))
    thick = high + (low - high) * smooth(0.2, 0.72, view.y)
    return torch.lerp(image, veil, (thick * (1 + 0.22 * banks)).clamp_(0, 0.95))


def near_fog(view: FieldView, light: Light, image: Tensor) -> Tensor:
    return fog(view, light, image, low=0.22, high=0.14)


VEILS = {"rain": rain, "snow": snow, "fog": near_fog}
"""Functions that draw each weather in front of the things; the other weathers are in the backdrop alone."""
