"""Drawing one thing on a small patch: distances to shapes, and a brush that fills them.

Local coordinates: the thing fills about -1 to 1 both ways, u forwards (the way it faces), v downwards.
Distances are negative inside.
Shapes: M things of one kind, P the side of a patch: u, v and distances are [M, 1, P, P].
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.train.data.light import colour


def circle(u: Tensor, v: Tensor, radius: float) -> Tensor:
    return (u.square() + v.square()).sqrt() - radius


def ellipse(u: Tensor, v: Tensor, a: float, b: float) -> Tensor:
    """Near the edge this is close enough to a distance."""
    k = ((u / a).square() + (v / b).square()).sqrt()
    return (k - 1) * min(a, b)


def box(u: Tensor, v: Tensor, a: float, b: float, rounding: float = 0.0) -> Tensor:
    p = u.abs() - (a - rounding)
    q = v.abs() - (b - rounding)
    outside = (p.clamp(min=0).square() + q.clamp(min=0).square()).sqrt()
    return outside + torch.maximum(p, q).clamp(max=0) - rounding


def segment(
    u: Tensor, v: Tensor, start: tuple[float, float], end: tuple[float, float], thick: float
) -> Tensor:
    """A line with round ends."""
    du = end[0] - start[0]
    dv = end[1] - start[1]
    p = u - start[0]
    q = v - start[1]
    along = ((p * du + q * dv) / (du * du + dv * dv)).clamp(0, 1)
    return ((p - du * along).square() + (q - dv * along).square()).sqrt() - thick


def polygon(u: Tensor, v: Tensor, *corners: tuple[float, float]) -> Tensor:
    """A convex shape, corners clockwise on the screen: the farthest of its sides."""
    distance: Tensor | None = None
    for (u0, v0), (u1, v1) in zip(corners, (*corners[1:], corners[0]), strict=True):
        du = u1 - u0
        dv = v1 - v0
        length = (du * du + dv * dv) ** 0.5
        side = (u - u0) * (dv / length) - (v - v0) * (du / length)
        distance = side if distance is None else torch.maximum(distance, side)
    assert distance is not None, "a polygon has corners"
    return distance


class Brush:
    """Paints one layer a thing, colour and opacity, to be laid over pictures later."""

    def __init__(self, like: Tensor, *, paint: Tensor, ambient: Tensor, pixel: Tensor, time: Tensor) -> None:
        self.layer = torch.zeros_like(like).repeat(1, 3, 1, 1)
        """Colour times opacity, [M, 3, P, P]."""
        self.opacity = torch.zeros_like(like)
        self.paint = paint
        """Colour of the thing, [M, 3, 1, 1]."""
        self.ambient = ambient
        """Factor by which light changes any colour, [M, 3, 1, 1]."""
        self.soft = 1.5 * pixel
        """Width of an edge, in local lengths, [M, 1, 1, 1]."""
        self.time = time
        dark = ((0.83 - ambient.mean(dim=1, keepdim=True)) / 0.05).clamp_(0, 1)
        self.ink = torch.lerp(paint * 0.30, paint * 0.55 + 0.30, dark)
        """Colour of the contour: dark by day, moonlit at night."""

    def rgb(self, r: float, g: float, b: float) -> Tensor:
        return colour(r, g, b, like=self.opacity)

    def inside(self, distance: Tensor) -> Tensor:
        """1 within a shape, 0 outside, soft between."""
        return (0.5 - distance / self.soft).clamp_(0, 1)

    def mix(self, paint: Tensor, mask: Tensor) -> None:
        """Lays paint over what is there."""
        self.layer = torch.lerp(self.layer, paint, mask)
        self.opacity = self.opacity + mask * (1 - self.opacity)

    def fill(
        self, distance: Tensor, paint: Tensor, opacity: float | Tensor = 1.0, lit: Tensor | None = None
    ) -> None:
        """Fills a shape; `lit` brightens or darkens it from place to place."""
        shade = self.ambient if lit is None else self.ambient * lit
        mask = self.inside(distance)
        self.mix(paint * shade, mask if isinstance(opacity, float) and opacity == 1 else mask * opacity)

    def body(self, distance: Tensor, paint: Tensor, lit: Tensor | None = None) -> None:
        """A filled shape with a soft contour, so that it stands out from any background."""
        self.fill(distance - 0.045, self.ink, 0.5)
        self.fill(distance, paint, 1.0, lit)

    def glow(self, distance: Tensor, paint: Tensor, reach: float, strength: float) -> None:
        """Light around a shape."""
        self.mix(paint, torch.exp(distance.clamp(min=0) * (-1 / reach)) * strength)


def round_light(u: Tensor, v: Tensor, strength: float = 0.3) -> Tensor:
    """Shading of something round, lit from above and a little from behind."""
    return (1.06 - strength * (0.75 * v + 0.35 * u)).clamp_(0.4, 1.45)
