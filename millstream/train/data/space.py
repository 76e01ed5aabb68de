"""Space: nebulae, three depths of stars, and a planet that drifts past again and again.
Shapes as in `fields`."""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.train.data.fields import FieldView, smooth, specks, waves
from millstream.train.data.light import Light, colour


def space(view: FieldView, light: Light) -> Tensor:
    image = nebula(view, light)
    time = view.get("t")
    for layer, (depth, density, radius, share) in enumerate(
        ((0.06, 30.0, 0.085, 0.34), (0.16, 16.0, 0.075, 0.3), (0.4, 8.0, 0.06, 0.26))
    ):
        dots, kind = specks(
            view.scrolled(depth) * density + 17 * layer, view.y * density, radius=radius, share=share
        )
        tint = torch.lerp(colour(1.0, 0.86, 0.72, like=image), colour(0.76, 0.86, 1.0, like=image), kind)
        image = image + dots * (0.7 + 0.3 * torch.sin(2 * time + 40 * kind)) * (0.5 + 0.25 * layer) * tint
    return planet(view, light, image)


def nebula(view: FieldView, light: Light) -> Tensor:
    x = view.scrolled(0.05)
    y = view.y
    body = waves(x, y, scale=3.0, octaves=5, time=0.05 * view.get("t"))
    veil = waves(x + 9.1, y + 3.0, scale=4.1, octaves=4, time=0.07 * view.get("t"))
    dark = light.nebula * 0.30
    image = torch.lerp(dark, light.nebula, smooth(-1.3, 1.6, body))
    core = smooth(0.2, 2.2, body + 0.6 * veil)
    image = torch.lerp(image, light.ember, core * 0.62)
    return image * (1 - 0.42 * smooth(0.2, 1.7, veil - 0.4 * body))


def planet(view: FieldView, light: Light, image: Tensor) -> Tensor:
    """A banded ball with a ring, lit from the upper left. It leaves, and comes back as the camera goes on."""
    radius = 0.09 + 0.09 * view.get("cover")
    lap = view.aspect + 0.9
    x = (view.get("sun") * lap - 0.12 * view.get("travel")).remainder(lap) - 0.45
    y = 0.68 - 0.45 * view.get("horizon")
    u = (view.x - x) / radius
    v = (view.y - y) / radius
    far = (u.square() + v.square()).sqrt()
    soft = 1.5 * view.pixel / radius
    ball = ((1 - far) / soft + 0.5).clamp_(0, 1)
    bands = torch.sin(v * 9 + 1.2 * torch.sin(u * 1.5 + 0.2 * view.get("t")) + view.get("grain"))
    lit = (0.62 - 0.55 * u - 0.45 * v).clamp_(0.06, 1.15)
    base = torch.lerp(light.ember, colour(0.80, 0.70, 0.62, like=image), 0.5 + 0.3 * view.get("hue"))
    halo = torch.exp((far - 1).clamp(min=0) * -7) * 0.28
    image = torch.lerp(image, light.ember, halo)
    image = torch.lerp(image, base * (0.88 + 0.12 * bands) * lit, ball)
    tilt = v + 0.28 * u
    ring_far = (u.square() + (tilt * 3.6).square()).sqrt()
    ring = smooth(1.32, 1.42, ring_far) * smooth(2.0, 1.86, ring_far) * (0.7 + 0.3 * torch.sin(ring_far * 26))
    front = ((tilt > 0) | (far > 1)).float()
    return torch.lerp(image, light.ember * 0.5 + 0.4, ring * front * 0.62)
