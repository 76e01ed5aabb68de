"""The land of each setting: layers at several depths that scroll without end, far ones slower and hazier.

A land takes the sky and paints below the horizon. `LANDS` has one for each setting; space, which has no
horizon, is in `space.py`.
Shapes as in `fields`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from millstream.train.data.fields import FieldView, below, chance, line, smooth, specks, waves
from millstream.train.data.light import DUSK, Light, colour, lit
from millstream.train.data.sky import sun_place

TRACK = 0.845
"""Where a train's wheels stand, in picture heights."""


def lay(image: Tensor, view: FieldView, edge: Tensor, paint: Tensor, soft: float = 1.4) -> Tensor:
    """Paints everything below an edge."""
    return torch.lerp(image, paint, below(edge, view.y, soft * view.pixel))


def hills(view: FieldView, light: Light, horizon: Tensor, image: Tensor) -> Tensor:
    grass = colour(0.34, 0.58, 0.24, like=image) + colour(0.10, 0.0, -0.06, like=image) * view.get("hue")
    for layer, (depth, drop, size, scale, haze) in enumerate(
        (
            (0.12, -0.03, 0.07, 4.5, 0.72),
            (0.26, 0.04, 0.06, 3.6, 0.5),
            (0.5, 0.12, 0.06, 2.9, 0.25),
            (1.0, 0.22, 0.035, 2.4, 0.0),
        )
    ):
        x = view.scrolled(depth)
        edge = horizon + drop - size * line(x, scale=scale, octaves=3, rough=0.42)
        if layer in (1, 2):
            edge = edge - copse(x, 0.03 + 0.022 * layer, 0.016 + 0.012 * layer)
        paint = torch.lerp(lit(grass, light) * (0.98 - 0.04 * layer), light.haze, haze)
        crest = torch.exp((view.y - edge).clamp(min=0) * -(16.0 - 2 * layer))
        tone = 0.84 + 0.34 * crest
        if layer >= 2:
            tone = tone + 0.05 * waves(x, view.y, scale=11.0 * (1 + depth), octaves=3, stretch=2.6)
        image = lay(image, view, edge, paint * tone)
    return flowers(view, light, edge, image)


def flowers(view: FieldView, light: Light, edge: Tensor, image: Tensor) -> Tensor:
    """Dots in the nearest meadow, in drifts."""
    x = view.scrolled(1.0)
    dots, kind = specks(x * 30, view.y * 46, radius=0.15, share=0.5)
    tint = torch.lerp(colour(1.0, 0.93, 0.62, like=image), colour(1.0, 0.70, 0.80, like=image), kind)
    drifts = smooth(-0.2, 0.6, line(x, scale=3.7, octaves=2)) * smooth(0.02, 0.07, view.y - edge)
    return torch.lerp(image, lit(tint, light), dots * drifts * 0.8)


def copse(x: Tensor, width: float, height: float) -> Tensor:
    """Round tree tops on a ridge: what to raise it by."""
    cell = (x / width).floor()
    lot, size, _, rank = chance(cell, 11)
    u = (x / width - cell - 0.5) * 2
    grove = smooth(-0.1, 0.4, line(x, scale=1.9, octaves=2)) * (rank > 0.2)
    return grove * height * (0.3 + 0.9 * size) * (1 - u.square()).clamp(min=0).sqrt() * (0.8 + 0.2 * lot)


def sea(view: FieldView, light: Light, horizon: Tensor, image: Tensor) -> Tensor:
    """Far water with the sun's path on it, then rows of waves that roll as they scroll."""
    deep = torch.lerp(colour(0.04, 0.34, 0.50, like=image) * light.ambient, light.top * 0.62, 0.42) * (
        1 - 0.2 * light.dull
    )
    depth = view.y - horizon
    near = (depth / 0.5).clamp(0, 1)
    water = torch.lerp(light.haze * 0.5 + light.middle * 0.25 + deep * 0.25, deep, smooth(0.0, 0.3, depth))
    time = view.get("t")
    x = view.scrolled(0.35)
    ripple = torch.sin(x * 38 + 5 * torch.sin(view.y * 60 + 0.9 * time)) * torch.sin(
        260 * near.clamp(min=0.004).sqrt() - 1.6 * time + 2 * torch.sin(x * 9)
    )
    sun, _ = sun_place(view, horizon)
    path = torch.exp(-((view.x - sun) / (0.035 + 0.22 * near)).square()) * (1 - 0.8 * light.dull)
    water = water * (1 + 0.10 * ripple)
    water = torch.lerp(water, light.glow, (path * (0.30 + 0.45 * ripple)).clamp_(0, 1) * (1 - 0.6 * near))
    image = torch.lerp(image, water, below(horizon, view.y, 1.6 * view.pixel))
    for layer, (speed, drop) in enumerate(((0.5, 0.13), (0.72, 0.23), (1.0, 0.34))):
        image = roller(view, light, image, deep, horizon + drop, layer, speed)
    return image


def roller(
    view: FieldView, light: Light, image: Tensor, deep: Tensor, base: Tensor, layer: int, speed: float
) -> Tensor:
    """One row of waves: pointed crests with a rim of foam, darker underneath."""
    time = view.get("t")
    x = view.scrolled(speed) + 3.1 * layer
    swell = 0.010 + 0.006 * layer
    rock = torch.sin(x * (13.0 - 2.5 * layer) + 0.8 * torch.sin(x * 4.1) + time * (1.1 + 0.2 * layer))
    crest = base - swell * (1.3 - 2.2 * rock.abs()) + 0.006 * torch.sin(0.9 * time + 2.0 * layer)
    under = (view.y - crest).clamp(min=0)
    paint = torch.lerp(deep, light.middle, 0.40 - 0.12 * layer) * (0.82 + 0.45 * torch.exp(under * -18))
    tone = 1 + 0.05 * waves(x, view.y, scale=17.0, octaves=3, stretch=3.0, time=1.5 * time)
    foam = torch.exp(under * -110) * (0.45 + 0.1 * layer)
    paint = torch.lerp(paint * tone, light.cloud * 0.6 + light.ambient * 0.4, foam)
    return torch.lerp(image, paint, below(crest, view.y, 1.6 * view.pixel) * 0.93)


def desert(view: FieldView, light: Light, horizon: Tensor, image: Tensor) -> Tensor:
    """Mesas far away, then dunes with a lit and a shaded side."""
    sand = colour(0.93, 0.70, 0.42, like=image) + colour(0.03, -0.03, -0.05, like=image) * view.get("hue")
    x = view.scrolled(0.08)
    mesa = (
        smooth(0.35, 0.5, line(x, scale=5.2, octaves=3)) * 0.07
        + smooth(0.6, 0.66, line(x, scale=7.7, octaves=2)) * 0.03
    )
    stone = torch.lerp(colour(0.66, 0.40, 0.32, like=image) * light.ambient, light.haze, 0.55)
    image = lay(image, view, horizon - 0.01 - mesa, stone)
    for layer, (depth, drop, size, scale) in enumerate(
        ((0.2, 0.0, 0.03, 5.0), (0.5, 0.09, 0.05, 3.0), (1.0, 0.22, 0.06, 1.9))
    ):
        x = view.scrolled(depth)
        swing = torch.sin(x * scale + 0.7 * torch.sin(x * scale * 0.53))
        edge = horizon + drop - size * (1.6 * (1 - swing.abs()) - 0.5) - 0.008 * line(x, scale=9.0, octaves=2)
        slope = torch.tanh(-4 * swing * torch.cos(x * scale) / (swing.abs() + 0.2))
        sink = (view.y - edge).clamp(min=0)
        fold = torch.exp(sink * -(9.0 - 2 * layer))
        tone = 0.90 + 0.13 * slope * fold + 0.12 * fold
        if layer:
            wind = 0.5 * waves(x, view.y, scale=6.0, octaves=2)
            tone = tone + 0.025 * layer * torch.sin(view.y * (330 - 110 * layer) + x * 16 + 4 * wind)
        paint = torch.lerp(lit(sand, light), light.haze, 0.42 - 0.2 * layer)
        image = lay(image, view, edge, paint * tone)
    return image


def city(view: FieldView, light: Light, horizon: Tensor, image: Tensor) -> Tensor:
    """Three rows of houses with windows, and a park in front."""
    dark = (view.get("time") >= DUSK).float()
    for layer, (depth, width, rise, haze) in enumerate(
        ((0.10, 0.055, 0.30, 0.62), (0.24, 0.085, 0.25, 0.36), (0.5, 0.13, 0.20, 0.1))
    ):
        image = skyline(view, light, image, horizon + 0.06 * layer, layer, depth, width, rise, haze, dark)
    x = view.scrolled(1.0)
    lawn = lit(colour(0.27, 0.46, 0.24, like=image), light)
    edge = horizon + 0.19 - copse(x, 0.085, 0.055) - 0.006 * line(x, scale=5.0)
    tone = (
        0.8
        + 0.4 * torch.exp((view.y - edge).clamp(min=0) * -22)
        + 0.05 * waves(x, view.y, scale=20.0, octaves=3, stretch=2.5)
    )
    return lay(image, view, edge, lawn * tone)


def skyline(
    view: FieldView, light: Light, image: Tensor, ground: Tensor, layer: int, depth: float, width: float, rise: float,
    haze: float, dark: Tensor,
) -> Tensor:  # fmt: skip
    x = view.scrolled(depth) / width
    house = x.floor()
    tall, gap, tint, mast = chance(house, 31 + layer)
    u = (x - house - 0.5).abs()
    body = below(0.0, 0.5 - 0.09 * gap - u, 2 * view.pixel / width)  # 1 within the house
    roof = ground - rise * (0.3 + 0.7 * tall)
    spire = torch.where((mast > 0.72) & (u < 0.05), 0.05, 0.0) + torch.where(
        (mast < 0.3) & (u < 0.24), 0.018, 0.0
    )
    edge = ground - (ground - roof + spire) * body
    wall = colour(0.52, 0.50, 0.56, like=image) + colour(0.10, 0.0, -0.08, like=image) * (tint - 0.5) * 2
    paint = torch.lerp(
        wall * light.ambient * (0.62 - 0.05 * layer) * (1 - 0.45 * dark), light.haze, haze * (1 - 0.35 * dark)
    )
    paint = (
        paint * (0.9 + 0.2 * smooth(-0.35, 0.4, x - house - 0.5)) * (1.05 - 0.3 * (view.y - edge).clamp(0, 1))
    )
    if layer:
        paint = windows(view, light, paint, x * (5.0 + layer), edge, layer, dark)
    return lay(image, view, edge, paint)


def windows(
    view: FieldView, light: Light, paint: Tensor, x: Tensor, roof: Tensor, layer: int, dark: Tensor
) -> Tensor:
    step = 0.024 + 0.007 * layer
    column = x.floor()
    row = (view.y / step).floor()
    soft = 2.2 * view.pixel / step
    across = below(0.0, 0.27 - (x - column - 0.5).abs(), soft)
    down = below(0.0, 0.27 - (view.y / step - row - 0.5).abs(), soft)
    lot = chance(column, row + 97 * layer)[0]
    lamp = (lot > 0.45) * dark
    glass = torch.lerp(
        paint * 0.72 + 0.12 * light.middle, colour(1.0, 0.80, 0.42, like=paint), lamp * (0.55 + 0.45 * lot)
    )
    return torch.lerp(paint, glass, across * down * (view.y > roof + 0.016))


def forest(view: FieldView, light: Light, horizon: Tensor, image: Tensor) -> Tensor:
    """Rows of firs with mist between them."""
    fir = colour(0.17, 0.42, 0.24, like=image) + colour(0.07, 0.02, -0.04, like=image) * view.get("hue")
    for layer, (depth, width, tall, drop, haze) in enumerate(
        (
            (0.10, 0.045, 0.09, -0.02, 0.72),
            (0.22, 0.07, 0.14, 0.05, 0.5),
            (0.45, 0.11, 0.19, 0.14, 0.26),
            (1.0, 0.17, 0.20, 0.27, 0.04),
        )
    ):
        x = view.scrolled(depth)
        base = horizon + drop - 0.02 * line(x, scale=3.3)
        edge = base - torch.maximum(
            firs(x, width, tall, 3 * layer), firs(x + 0.5 * width, width, tall * 0.85, 3 * layer + 1)
        )
        paint = torch.lerp(lit(fir, light) * (0.95 - 0.12 * layer), light.haze, haze)
        sink = (view.y - edge).clamp(min=0)
        paint = paint * (0.85 + 0.35 * torch.exp(sink * -16))
        mist = smooth(-0.02, 0.12, view.y - base) * (0.5 - 0.14 * layer)
        image = lay(image, view, edge, torch.lerp(paint, light.haze, mist))
    x = view.scrolled(1.35)
    edge = horizon + 0.34 - 0.012 * line(x, scale=6.0) - 0.016 * line(x, scale=95.0, octaves=2).abs()
    return lay(
        image, view, edge, lit(fir, light) * (0.7 + 0.5 * torch.exp((view.y - edge).clamp(min=0) * -30))
    )


def firs(x: Tensor, width: float, tall: float, row: int) -> Tensor:
    """The outline of a row of firs: a cone each, with branches that step outwards."""
    cell = (x / width).floor()
    size, shift, _, _ = chance(cell, 50 + row)
    u = ((x / width - cell - 0.5 - 0.24 * (shift - 0.5)).abs() * 2.6).clamp(max=1)
    cone = 1 - u
    step = (cone * 6 + 0.35).floor() / 6
    return tall * (0.55 + 0.6 * size) * (0.6 * cone + 0.4 * step).clamp(min=0)


def track(view: FieldView, light: Light, image: Tensor) -> Tensor:
    """An embankment with sleepers and a rail, for settings on land that a train runs through."""
    x = view.scrolled(1.0)
    y = view.y
    bank = torch.lerp(colour(0.42, 0.36, 0.33, like=image) * light.ambient, light.haze, 0.08)
    image = torch.lerp(
        image, bank, below(TRACK + 0.012, y, 2 * view.pixel) * (1 - below(TRACK + 0.05, y, 0.03))
    )
    sleepers = smooth(0.1, 0.3, torch.sin(x * 110)) * below(TRACK + 0.008, y, 1.5 * view.pixel)
    image = torch.lerp(image, bank * 0.55, sleepers * (1 - below(TRACK + 0.022, y, 1.5 * view.pixel)))
    rail = (1 - (y - TRACK - 0.004).abs() / (1.6 * view.pixel)).clamp(0, 1)
    return torch.lerp(image, light.ambient * 0.8, rail * 0.9)


Land = Callable[[FieldView, Light, Tensor, Tensor], Tensor]
LANDS: dict[str, Land] = {"hills": hills, "sea": sea, "desert": desert, "city": city, "forest": forest}
HORIZONS = {
    "hills": (0.56, 0.64),
    "sea": (0.48, 0.55),
    "desert": (0.58, 0.66),
    "city": (0.66, 0.72),
    "forest": (0.58, 0.64),
}
"""How high and how low the horizon of a setting may be."""
SNOW_LINES = {"hills": -0.03, "city": 0.13, "forest": 0.22}
"""How far below the horizon snow settles; a setting without one stays as it is."""
