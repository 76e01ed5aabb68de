"""Everything above the land: the gradient, sun and moon, stars, clouds and aurora.

Shapes as in `fields`; a picture is [N, 3, H, W] in 0 to 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.train.data.fields import FieldView, line, smooth, specks, waves
from millstream.train.data.light import AURORA, DAWN, DUSK, NIGHT, Light, colour


def sky(view: FieldView, light: Light, horizon: Tensor) -> Tensor:
    image = gradient(view, light, horizon).expand(-1, -1, -1, view.width).contiguous()
    for part in view.spans(lambda tag: tag.time >= DUSK):
        image[part] += stars(view[part], light[part], horizon[part])
    image = shine(view, light, horizon, image)
    return clouds(view, light, horizon, image)


def gradient(view: FieldView, light: Light, horizon: Tensor) -> Tensor:
    """[N, 3, H, 1]"""
    height = view.y / horizon
    upper = torch.lerp(light.top, light.middle, smooth(-0.1, 0.72, height))
    return torch.lerp(upper, light.low, smooth(0.45, 1.0, height))


def sun_place(view: FieldView, horizon: Tensor) -> tuple[Tensor, Tensor]:
    """Dawn's sun stands low on the left, dusk's low on the right; day's and the moon high. Each [N, 1, 1,
    1]."""
    time = view.get("time")
    lot = view.get("sun")
    low = (time == DAWN) | (time == DUSK)
    left = torch.where(
        time == DAWN, 0.12 + 0.22 * lot, torch.where(time == DUSK, 0.66 + 0.22 * lot, 0.15 + 0.7 * lot)
    )
    return left * view.aspect, torch.where(low, horizon - 0.06 - 0.05 * lot, 0.13 + 0.08 * lot)


def shine(view: FieldView, light: Light, horizon: Tensor, image: Tensor) -> Tensor:
    """Sun or moon: a disc, a near halo, a wide glow."""
    x, y = sun_place(view, horizon)
    far = ((view.x - x).square() + (view.y - y).square()).sqrt()
    night = view.get("time") == NIGHT
    radius = torch.where(night, 0.05, 0.058)
    clear = (1 - 0.9 * light.dull) * torch.where((view.get("weather") == AURORA) & ~night, 0.3, 1.0)
    halo = torch.exp(far * -3.2) * torch.where(night, 0.28, 0.62) + torch.exp(far * -11) * torch.where(
        night, 0.3, 0.4
    )
    image = torch.lerp(image, light.glow, (halo * clear).clamp_(max=1))
    disc = ((radius - far) / (2.5 * view.pixel) + 0.5).clamp_(0, 1) * clear
    dent = torch.exp(((view.x - x - 0.014).square() + (view.y - y + 0.012).square()) * -2600)
    face = torch.lerp(light.glow, colour(1, 1, 0.96, like=image), 0.6) - 0.16 * dent * night
    return torch.lerp(image, face, disc)


def stars(view: FieldView, light: Light, horizon: Tensor) -> Tensor:
    """[N, 1, H, W]: light to add. They thin out towards the horizon, and dusk has few."""
    time = view.get("t")
    amount = torch.where(view.get("time") == NIGHT, 1.0, 0.25) * (1 - light.dull)
    x = view.scrolled(0.04)
    y = view.y
    near, kind = specks(x * 13, y * 13, radius=0.075, share=0.36)
    far, _ = specks(x * 26 + 71, y * 26, radius=0.085, share=0.36)
    twinkle = 0.75 + 0.25 * torch.sin(time * 2.2 + kind * 40)
    return (near * twinkle + 0.5 * far) * (amount * (1.1 - y / horizon).clamp(0, 1))


def clouds(view: FieldView, light: Light, horizon: Tensor, image: Tensor) -> Tensor:
    """A field of waves cut at a threshold, lit from above: what is thinner upwards is bright."""
    x = view.scrolled(0.10) + 0.008 * view.get("t")
    time = view.get("t") * 0.12
    y = view.y * (1.25 - 0.35 * view.y)
    field = waves(x, y, scale=5.0, octaves=4, stretch=2.4, time=time)
    above = waves(x, y - 0.035, scale=5.0, octaves=3, stretch=2.4, time=time)
    cover = (
        torch.maximum(view.get("cover") * 1.3 - 1.1, light.dull * 1.6 - 0.75)
        - (view.get("weather") == AURORA).float()
    )
    body = smooth(0.0, 1.1, field + cover) * smooth(1.05, 0.55, view.y / horizon)
    lit = (0.55 + 0.42 * (field - above)).clamp_(0, 1)
    return torch.lerp(image, torch.lerp(light.shade, light.cloud, lit), body * 0.86)


def aurora(view: FieldView, image: Tensor, floor: Tensor) -> Tensor:
    """Three curtains of rays hanging along wandering lines above `floor`, green below and violet above."""
    time = view.get("t")
    green = colour(0.25, 1.0, 0.62, like=image)
    violet = colour(0.62, 0.30, 0.98, like=image)
    for curtain in range(3):
        x = view.scrolled(0.06 + 0.03 * curtain) + 7.3 * curtain
        foot = floor * (0.78 - 0.17 * curtain) + 0.09 * line(x, scale=3.1, octaves=3, time=0.25 * time)
        rays = 0.62 + 0.38 * line(x, scale=34, octaves=3, time=0.5 * time, rough=0.7)
        rays = rays * (0.62 + 0.38 * line(x, scale=2.3, octaves=2, time=0.4 * time)) * (0.85 - 0.18 * curtain)
        up = (foot - view.y) * (4.2 - 1.0 * rays)
        glow = torch.exp(-up.clamp(min=0) * 1.15) * smooth(-0.14, 0.07, up) * rays
        image = image + glow * (1 - 0.6 * image) * torch.lerp(green, violet, (up * 0.62).clamp_(0, 1))
    return image
