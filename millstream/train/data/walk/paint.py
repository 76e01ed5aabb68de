"""Paint of the ground and the water: colours of a land, patches and grain that a pixel can hold, light.

Every noise fades where a pixel covers more than half its length, which keeps far ground calm.
Shapes: N frames, P samples; colours [N, 3, P].
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from millstream.train.data.fields import smooth
from millstream.train.data.light import NIGHT, colour
from millstream.train.data.vocabulary import SETTINGS
from millstream.train.data.walk.eye import RAIN, SNOW, Eye, Mood, is_setting
from millstream.train.data.walk.noise import cells_of, hash_cells, ripples, uniform, value_noise
from millstream.train.data.walk.scenery import HOUSE_CELL, STREET_HALF
from millstream.train.data.walk.sky import gradient
from millstream.train.data.walk.terrain import PATH_HALF, Height, normal_of

# By setting: two colours that meadows are mixed from, and the colour of steep places.
_EARTH = {
    "hills": ((0.38, 0.62, 0.25), (0.58, 0.68, 0.30), (0.50, 0.46, 0.40)),
    "sea": ((0.86, 0.76, 0.55), (0.46, 0.62, 0.30), (0.56, 0.52, 0.46)),
    "desert": ((0.93, 0.70, 0.42), (0.88, 0.62, 0.36), (0.72, 0.46, 0.32)),
    "city": ((0.34, 0.54, 0.28), (0.40, 0.58, 0.30), (0.45, 0.45, 0.45)),
    "forest": ((0.25, 0.42, 0.22), (0.38, 0.44, 0.22), (0.42, 0.36, 0.30)),
    "space": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


@lru_cache(maxsize=8)
def _earth(device: torch.device) -> Tensor:
    """[setting, 3, rgb]"""
    return torch.tensor([_EARTH[name] for name in SETTINGS], device=device)


def fade(footprint: Tensor, length: float) -> Tensor:
    """1 where pixels are much smaller than a length, 0 where half of it or larger."""
    return (length / footprint * 0.5 - 1).clamp(0, 1)


def shine_on(
    mood: Mood, paint: Tensor, normal: tuple[Tensor, Tensor, Tensor], shadow: Tensor | float = 1.0
) -> Tensor:
    """A colour in this light: from all of the sky, and from the sun; shadows take on the sky's colour."""
    east, up, south = normal
    facing = (east * mood.sun[:, :1] + up * mood.sun[:, 1:2] + south * mood.sun[:, 2:]).clamp(min=0)
    direct = (facing * mood.strength * shadow)[:, None]
    around = (0.60 + 0.18 * up + 0.20 * mood.dull + 0.14 * (mood.time == NIGHT).float()[:, None])[:, None]
    lit = paint * (mood.ambient * around + mood.glow * direct)
    return torch.lerp(lit, mood.middle, 0.07 + 0.05 * (1 - up.clamp(0, 1))[:, None])


def through_air(eye: Eye, image: Tensor, x: Tensor, y: Tensor, z: Tensor, far: Tensor) -> Tensor:
    """Fade a colour by distance (metres), in directions of length 1."""
    air = 1 - torch.exp(-(far / eye.mood.sight).clamp(max=30))
    return torch.lerp(image, gradient(eye.mood, x, y * 0.0, z), air[:, None])


def ground(eye: Eye, x: Tensor, z: Tensor, land: Height, footprint: Tensor, rails: Tensor) -> Tensor:
    """Paint of the land, unlit. `rails` [N, 4, 2]: a point and a direction of each thing's track."""
    places = eye.places(x, z)
    mood = eye.mood
    mix = _earth(x.device)[mood.setting]
    broad = value_noise(places, 32.0, 40) * fade(footprint, 32.0)
    patch = value_noise(places, 8.0, 41) * fade(footprint, 8.0)
    grain = value_noise(places, 1.0, 42) * fade(footprint, 1.0)
    fine = value_noise(places, 0.25, 43) * fade(footprint, 0.25)
    fine = fine + 0.8 * value_noise(places, 0.125, 44) * fade(footprint, 0.125)
    blend = (0.5 + 0.55 * broad + 0.35 * patch + 0.15 * grain).clamp(0, 1)[:, None]
    shore = is_setting(mood, "sea")
    blend = torch.lerp(blend, smooth(1.6, 3.2, land.y + 0.5 * patch)[:, None], shore)
    paint = torch.lerp(mix[:, 0, :, None], mix[:, 1, :, None], blend)
    paint = paint + 0.04 * mood.hue[:, None] * colour(1.0, 0.0, -0.6, like=paint)[..., 0]
    steep = smooth(0.35, 0.62, (land.dx.square() + land.dz.square()).sqrt() + 0.06 * patch)
    paint = torch.lerp(paint, mix[:, 2, :, None], (steep * 0.8)[:, None])
    desert = is_setting(mood, "desert")[:, 0]
    wind = torch.sin((x * 0.6 + z) * (2 * math.pi * 1.5) + 5 * patch + 2.5 * grain) * fade(footprint, 0.6)
    tone = 1 + 0.07 * patch + 0.10 * grain + 0.12 * fine + desert * (0.035 * wind - 0.06 * grain)
    paint = paint * tone[:, None]
    paint = _flowers(eye, paint, places, footprint, broad)
    paint = _streets(eye, paint, places, footprint)
    sand = colour(0.84, 0.74, 0.54, like=paint)[..., 0]
    wet = smooth(0.9, 0.25, land.y + 0.12 * patch)
    paint = torch.lerp(paint, sand, wet[:, None])
    paint = paint * (1 - 0.28 * smooth(0.22, 0.02, land.y))[:, None]
    soft = footprint.clamp(min=0.25)
    path = ((PATH_HALF + 0.12 * grain - land.path) / soft + 0.5).clamp(0, 1) * (PATH_HALF * 3 / soft).clamp(
        max=1
    )
    earth = colour(0.66, 0.54, 0.39, like=paint)[..., 0] * (1 + 0.10 * grain + 0.10 * fine)[:, None]
    paint = torch.lerp(paint, earth, (0.85 * path)[:, None])
    paint = _track(paint, x, z, footprint, rails)
    white = (mood.weather == SNOW).float()[:, None] * smooth(0.35, 0.6, 1 - steep) * smooth(0.02, 0.3, land.y)
    cover = (0.86 - 0.3 * path + 0.10 * patch + 0.08 * grain).clamp(0, 0.95)
    paint = torch.lerp(paint, colour(0.96, 0.97, 1.0, like=paint)[..., 0], (white * cover)[:, None])
    return paint * (1 - 0.18 * (mood.weather == RAIN).float())[:, None, None]


def _flowers(eye: Eye, paint: Tensor, places: tuple[Tensor, ...], footprint: Tensor, broad: Tensor) -> Tensor:
    """Dots in the meadows of the hills, in drifts."""
    across, along, u, v = cells_of(eye.places(places[0], places[1]), 0.5)
    word = hash_cells(across, along, eye.seed[:, None])
    away = (u - 0.3 - 0.4 * uniform(word, 1)).square() + (v - 0.3 - 0.4 * uniform(word, 2)).square()
    dots = (1.6 - away.sqrt() * 16).clamp(0, 1) * (uniform(word) < 0.30) * fade(footprint, 0.12)
    tint = torch.where(
        (uniform(word, 3) < 0.5)[:, None],
        colour(1.0, 0.93, 0.60, like=paint)[..., 0],
        colour(1.0, 0.72, 0.82, like=paint)[..., 0],
    )
    drifts = smooth(-0.05, 0.3, broad) * is_setting(eye.mood, "hills")[:, 0]
    return torch.lerp(paint, tint, (dots * drifts * 0.9)[:, None])


def _streets(eye: Eye, paint: Tensor, places: tuple[Tensor, ...], footprint: Tensor) -> Tensor:
    """Asphalt between a city's blocks, pavements, a dashed line."""
    _, _, u, v = cells_of(eye.places(places[0], places[1]), HOUSE_CELL)
    from_x = torch.minimum(u, 1 - u) * HOUSE_CELL
    from_z = torch.minimum(v, 1 - v) * HOUSE_CELL
    near = torch.minimum(from_x, from_z)
    soft = footprint.clamp(min=0.06)
    road = ((STREET_HALF - 1.3 - near) / soft + 0.5).clamp(0, 1)
    pavement = ((STREET_HALF + 0.4 - near) / soft + 0.5).clamp(0, 1)
    along = torch.where(from_x < from_z, v, u) * HOUSE_CELL
    crossing = torch.maximum(from_x, from_z) < STREET_HALF
    dash = ((along.remainder(4.0) - 2.0).abs() < 1.0) & ~crossing
    line = ((0.09 - near) / soft + 0.5).clamp(0, 1) * dash * fade(footprint, 1.0)
    city = is_setting(eye.mood, "city")
    stone = colour(0.62, 0.61, 0.60, like=paint)[..., 0]
    paint = torch.lerp(paint, stone, pavement[:, None] * city)
    paint = torch.lerp(paint, colour(0.36, 0.36, 0.39, like=paint)[..., 0], road[:, None] * city)
    return torch.lerp(paint, colour(0.92, 0.90, 0.84, like=paint)[..., 0], line[:, None] * city)


def _track(paint: Tensor, x: Tensor, z: Tensor, footprint: Tensor, rails: Tensor) -> Tensor:
    """Gravel, sleepers and two rails; `rails` is far away where there is no train."""
    soft = footprint.clamp(min=0.04)
    for slot in range(rails.shape[2]):
        px, pz, east, south = (rails[:, i, slot, None] for i in range(4))
        u = (x - px) * east + (z - pz) * south
        v = ((z - pz) * east - (x - px) * south).abs()
        gravel = ((1.5 - v) / soft.clamp(min=0.3) + 0.5).clamp(0, 1)
        sleeper = (
            smooth(-0.1, 0.3, torch.sin(u * (2 * math.pi / 0.8))) * ((1.1 - v) / soft + 0.5).clamp(0, 1)
        ) * fade(footprint, 0.8)
        rail = (1 - (v - 0.72).abs() / soft.clamp(min=0.07)).clamp(0, 1)
        paint = torch.lerp(paint, colour(0.46, 0.42, 0.40, like=paint)[..., 0], gravel[:, None])
        paint = torch.lerp(paint, colour(0.28, 0.22, 0.19, like=paint)[..., 0], (sleeper * 0.9)[:, None])
        paint = torch.lerp(paint, colour(0.74, 0.74, 0.76, like=paint)[..., 0], (rail * 0.85)[:, None])
    return paint


def lit_ground(eye: Eye, paint: Tensor, land: Height, shadow: Tensor) -> Tensor:
    return shine_on(eye.mood, paint, normal_of(land), shadow)


def water(
    eye: Eye,
    rays: tuple[Tensor, Tensor, Tensor],
    far: Tensor,
    deep: Tensor,
    skyline: Tensor,
    footprint: Tensor,
) -> Tensor:
    """Lit colour of the water's surface, seen along directions of length 1, `far` metres along the ground.

    The sky is reflected, and the farthest land as a dark tint; trees, houses and things are not.
    """
    x, y, z = rays
    level = (x.square() + z.square()).sqrt()
    mood = eye.mood
    places = eye.places(eye.x[:, None] + x / level * far, eye.z[:, None] + z / level * far)
    dx, dz = ripples(places, eye.time[:, None], footprint)
    rough = 0.6 + 0.8 * is_setting(mood, "sea")[:, 0]
    dx = dx * rough
    dz = dz * rough
    up = (1 + dx.square() + dz.square()).rsqrt()
    nx = -dx * up
    nz = -dz * up
    cosine = (x * nx + y * up + z * nz).clamp(max=-0.02)
    mirror_x = x - 2 * cosine * nx
    mirror_y = (y - 2 * cosine * up).abs()
    mirror_z = z - 2 * cosine * nz
    mirrored = gradient(mood, mirror_x, mirror_y, mirror_z)
    land = _earth(x.device)[mood.setting][:, 1, :, None] * mood.ambient * 0.55
    dark = smooth(0.02, -0.02, mirror_y - skyline.clamp(min=0)) * smooth(0.0, 0.015, skyline)
    mirrored = torch.lerp(mirrored, torch.lerp(land, mood.haze, 0.35), dark[:, None] * 0.8)
    bounce = (0.03 + 0.97 * (1 + cosine).clamp(0, 1).pow(5)).clamp(max=0.85)
    shallow = colour(0.30, 0.66, 0.66, like=mirrored)[..., 0]
    abyss = colour(0.05, 0.30, 0.44, like=mirrored)[..., 0]
    sand = colour(0.62, 0.56, 0.42, like=mirrored)[..., 0]
    body = torch.lerp(abyss, shallow, torch.exp(deep * -0.55)[:, None])
    body = torch.lerp(body, sand, torch.exp(deep * -3.2)[:, None] * 0.85)
    body = torch.lerp(body * mood.ambient, mood.middle * 0.8, 0.18) * (1 - 0.12 * mood.dull)[:, None]
    image = torch.lerp(body, mirrored, bounce[:, None])
    sun = mood.sun
    glint = (mirror_x * sun[:, :1] + mirror_y * sun[:, 1:2] + mirror_z * sun[:, 2:]).clamp(min=0)
    spark = (glint.pow(60) * 0.30 + glint.pow(400) * 0.8) * (1 - 0.95 * mood.dull) * (1 - 0.7 * mood.fog)
    image = torch.lerp(image, mood.glow, spark.clamp(max=0.9)[:, None])
    crest = value_noise(places, 4.0, 50)
    lap = 0.16 + 0.10 * torch.sin(0.9 * eye.time[:, None] + 3 * crest)
    foam = smooth(0.10, 0.0, (deep - lap).abs()) * (0.55 + 0.45 * crest) + smooth(0.09, 0.0, deep) * 0.7
    foam = foam * (1 - smooth(20, 90, far))
    return torch.lerp(image, mood.ambient * 0.97, foam.clamp(0, 0.85)[:, None])
