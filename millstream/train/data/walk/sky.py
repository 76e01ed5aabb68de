"""The sky in any direction: gradient, sun or moon, stars, clouds on a plane high above, aurora.

Shapes: N frames, P samples; directions have length 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from millstream.train.data.fields import smooth
from millstream.train.data.light import AURORA, DUSK, NIGHT
from millstream.train.data.walk.eye import Eye, Mood
from millstream.train.data.walk.noise import Places, hash_cells, uniform, value_noise

CLOUDS_AT = 420.0
"""Metres above the eye."""
WIND = 6.0
"""Metres a second, to the east."""


def sky(eye: Eye, x: Tensor, y: Tensor, z: Tensor, pixel: float) -> Tensor:
    """[N, 3, P]; `pixel` is the angle between two samples, radians."""
    mood = eye.mood
    image = gradient(mood, x, y, z)
    image = image + _stars(eye, x, y, z)[:, None]
    image = _disc(mood, image, x, y, z, pixel)
    image = _clouds(eye, image, x, y, z)
    return _aurora(eye, image, x, y, z)


def gradient(mood: Mood, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """The sky without anything in it, glow of the sun included; the haze at and below the horizon."""
    height = y.clamp(min=0)[:, None]
    image = torch.lerp(mood.low, mood.middle, smooth(0.02, 0.30, height))
    image = torch.lerp(image, mood.top, smooth(0.18, 0.75, height))
    image = torch.lerp(image, mood.haze, torch.exp(height * -14) * 0.85)
    fog = mood.fog[:, None]
    image = torch.lerp(image, mood.haze, fog * (0.55 + 0.45 * torch.exp(height * -3)))
    cosine = _toward(mood, x, y, z)
    near = torch.exp((cosine - 1) * 9) * 0.42 + torch.exp((cosine - 1) * 90) * 0.4
    night = (mood.time == NIGHT).float()[:, None]
    shine = near * (1 - 0.92 * mood.dull) * (1 - 0.45 * night) * (1 - 0.6 * mood.fog)
    shine = shine * (1 - 0.7 * (mood.weather == AURORA).float()[:, None] * (1 - night))
    return torch.lerp(image, mood.glow, shine.clamp(max=1)[:, None])


def _toward(mood: Mood, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    sun = mood.sun
    return x * sun[:, :1] + y * sun[:, 1:2] + z * sun[:, 2:]


def _disc(mood: Mood, image: Tensor, x: Tensor, y: Tensor, z: Tensor, pixel: float) -> Tensor:
    night = (mood.time == NIGHT).float()[:, None]
    angle = ((1 - _toward(mood, x, y, z)) * 2).clamp(min=0).sqrt()
    radius = 0.042 - 0.006 * night
    clear = (1 - 1.2 * mood.dull).clamp(min=0) * (1 - 0.5 * mood.fog)
    disc = ((radius - angle) / (1.6 * pixel) + 0.5).clamp(0, 1) * clear
    face = torch.lerp(mood.glow, torch.ones_like(mood.glow), 0.65)
    return torch.lerp(image, face, disc[:, None])


def _stars(eye: Eye, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    mood = eye.mood
    amount = torch.where(mood.time == NIGHT, 1.0, torch.where(mood.time == DUSK, 0.3, 0.0))[:, None]
    amount = amount * (1 - mood.dull) * (1 - mood.fog) * smooth(0.02, 0.25, y)
    u = torch.atan2(x, -z) * (170 / (2 * math.pi))
    v = torch.asin(y.clamp(-1, 1)) * (170 / (2 * math.pi))
    column = u.floor()
    row = v.floor()
    word = hash_cells(column.to(torch.int32).remainder(170), row.to(torch.int32), eye.seed[:, None])
    rank = uniform(word)
    away = (u - column - 0.12 - 0.76 * uniform(word, 1)).square() + (
        v - row - 0.12 - 0.76 * uniform(word, 2)
    ).square()
    twinkle = 0.75 + 0.25 * torch.sin(2.2 * eye.time[:, None] + 40 * rank)
    return torch.exp(away * -70) * (rank > 0.72) * (0.25 + uniform(word, 3)) * twinkle * amount


def _clouds(eye: Eye, image: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Clouds are lit from the sun's side: what is thinner towards it is bright."""
    mood = eye.mood
    lift = y.clamp(min=0.03)
    far = CLOUDS_AT / lift
    east = eye.x[:, None] + x * far + WIND * eye.time[:, None]
    south = eye.z[:, None] + z * far
    body = _cloud_field(eye, east, south, far)
    level = (mood.sun[:, 0].square() + mood.sun[:, 2].square()).sqrt().clamp(min=0.1)[:, None]
    toward = _cloud_field(eye, east + 70 * mood.sun[:, :1] / level, south + 70 * mood.sun[:, 2:] / level, far)
    cover = torch.maximum(mood.cover * 0.75 - 0.55, mood.dull * 1.1 - 0.45)
    cover = cover - (mood.weather == AURORA).float()[:, None] * 0.8
    thick = smooth(-0.05, 0.5, body + cover) * smooth(0.03, 0.16, y)
    lit = (0.6 + 0.9 * (body - toward)).clamp(0, 1)[:, None]
    paint = torch.lerp(mood.shade, mood.cloud, lit)
    return torch.lerp(image, paint, (thick * 0.85 * (1 - 0.8 * mood.fog))[:, None])


def _cloud_field(eye: Eye, east: Tensor, south: Tensor, far: Tensor) -> Tensor:
    """Noise of the clouds; what far samples are too coarse for fades, so that nothing flickers."""
    places = Places(east, south, eye.tile, eye.seed)
    field = torch.zeros_like(east)
    for wavelength, weight in ((512.0, 0.55), (256.0, 0.38), (128.0, 0.24), (64.0, 0.14)):
        fade = (wavelength * 40 / far - 1).clamp(0, 1) if wavelength < 256 else 1.0
        field = field + weight * fade * value_noise(places, wavelength, 90 + round(wavelength))
    return field


def _aurora(eye: Eye, image: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Three curtains along wandering lines around the sky, green below and violet above. Whole numbers of
    waves around, so that the sky closes."""
    mood = eye.mood
    there = (mood.weather == AURORA).float()[:, None]
    angle = torch.atan2(x, -z)
    time = eye.time[:, None]
    shift = uniform(hash_cells(eye.seed, eye.seed, 5))[:, None] * 6.28
    green = image.new_tensor((0.25, 1.0, 0.62))[:, None]
    violet = image.new_tensor((0.62, 0.30, 0.98))[:, None]
    for curtain in range(3):
        a = angle + 2.1 * curtain + shift
        foot = (
            0.16
            + 0.11 * curtain
            + 0.05 * torch.sin(5 * a + 0.22 * time)
            + 0.03 * torch.sin(11 * a - 0.3 * time)
        )
        rays = (
            0.62
            + 0.2 * torch.sin(61 * a + 0.8 * time + 2 * torch.sin(7 * a))
            + 0.16 * torch.sin(113 * a - time)
        )
        rays = rays * (0.65 + 0.35 * torch.sin(4 * a + 0.3 * time)) * (0.9 - 0.2 * curtain)
        up = (y - foot) * (6.5 - 1.6 * rays)
        glow = torch.exp(-up.clamp(min=0) * 1.2) * smooth(-0.22, 0.1, up) * rays * there
        tint = torch.lerp(green, violet, (up * 0.62).clamp(0, 1)[:, None])
        image = image + glow[:, None] * (1 - 0.6 * image) * tint
    return image
