"""Rain and snow as drops and flakes in the air around the walker: in three dimensions, at places of the
world, so that one walks through them.

A cube of air repeats in all directions; nobody sees beyond its half. Fog is in the air of every surface.
Shapes: N frames, K drops, P samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.train.data.fields import smooth
from millstream.train.data.walk.camera import Rays, focal_length
from millstream.train.data.walk.eye import RAIN, SNOW, Eye
from millstream.train.data.walk.noise import TILE, hash_cells, uniform
from millstream.train.data.walk.raster import Boxes, fragments

CUBE = 12.0
"""Metres."""
FLAKES = 1300
DROPS = 900


def falling(eye: Eye, rays: Rays, depth: Tensor, image: Tensor, size: tuple[int, int]) -> Tensor:
    """Rain and snow over an image [N, 3, P] whose surfaces are at `depth` [N, P]."""
    snow = torch.lerp(eye.mood.ambient, torch.ones_like(eye.mood.ambient), 0.75)
    rain = (eye.mood.grey * 0.5 + 0.5).clamp(max=1)
    white = _cover(eye, rays, depth, size, eye.mood.weather == SNOW, FLAKES, 1.1, 0.0, 0.014)
    wet = _cover(eye, rays, depth, size, eye.mood.weather == RAIN, DROPS, 8.5, 0.26, 0.004)
    image = torch.lerp(image, snow, (0.92 * white)[:, None])
    return torch.lerp(image, rain, (0.50 * wet)[:, None])


def _cover(
    eye: Eye, rays: Rays, depth: Tensor, size: tuple[int, int], there: Tensor, count: int, speed: float,
    length: float, radius: float,
) -> Tensor:  # fmt: skip
    """Opacity [N, P] of what falls in the frames where it is `there`; the densest of those in a line counts, so
    their order does not matter."""
    cover = torch.zeros_like(depth).flatten()
    frames = there.nonzero()[:, 0]  # waits for the device
    number = torch.arange(count, dtype=torch.int32, device=depth.device)
    word = hash_cells(number, number, eye.seed[frames, None])
    time = eye.time[frames, None]
    sway = 0.25 * torch.sin(1.3 * time + 6.283 * uniform(word, 4)) if length == 0 else torch.zeros_like(time)
    corner = eye.tile[frames].double().mul(TILE).remainder(CUBE).float()
    x = uniform(word, 1) * CUBE + 0.5 * time + sway
    y = uniform(word, 2) * CUBE - speed * (0.8 + 0.4 * uniform(word, 5)) * time
    z = uniform(word, 3) * CUBE + sway
    x = (x - eye.x[frames, None] - corner[:, :1]).remainder(CUBE) - CUBE / 2
    y = (y - eye.y[frames, None]).remainder(CUBE) - CUBE / 2
    z = (z - eye.z[frames, None] - corner[:, 1:]).remainder(CUBE) - CUBE / 2
    turned = eye.rotation[frames]
    ahead = x * turned[:, 0, 2, None] + y * turned[:, 1, 2, None] + z * turned[:, 2, 2, None]
    kept = ahead > 0.5
    column = kept.nonzero(as_tuple=True)  # waits for the device
    frame = frames[column[0]]
    x, y, z, ahead = x[column], y[column], z[column], ahead[column]
    thick = torch.maximum(torch.full_like(ahead, radius), 0.8 * ahead / focal_length(size))
    half = length / 2 + thick
    boxes = Boxes(frame, x + eye.x[frame], y + eye.y[frame], z + eye.z[frame], thick, half, thick)
    found = fragments(eye, boxes, rays, size)
    drop = found.solid
    t = ahead[drop]
    dx, dy, dz = (part.flatten()[found.sample] * t for part in (rays.x, rays.y, rays.z))
    up = dy - y[drop]
    up = up - up.clamp(-length / 2, length / 2)
    away = ((dx - x[drop]).square() + up.square() + (dz - z[drop]).square()).sqrt()
    soft = (1.5 * (1 - away / thick[drop])).clamp(0, 1)
    strength = (
        (radius / thick[drop]).clamp(max=1) if length == 0 else (radius / thick[drop]).clamp(max=1).sqrt()
    )
    shown = smooth(0.5, 1.2, t) * smooth(CUBE / 2, CUBE / 2 - 1.5, t) * (t < depth.flatten()[found.sample])
    return cover.scatter_reduce_(0, found.sample, soft * strength * shown, "amax").view_as(depth)


def grey_air(eye: Eye, image: Tensor) -> Tensor:
    """Rain takes some colour out of everything."""
    share = 0.10 * (eye.mood.weather == RAIN).float()[:, None, None]
    return torch.lerp(image, eye.mood.grey, share)
