"""Points where lines of sight meet the land, without marching: the land is sampled on rings around the eye, and the
steepest rise so far along each direction tells which ring hides what lies behind it.

A line of sight at a given rise ends between two neighbouring rings, found by halving. There the land's own
height and slope give the exact place.
Shapes: N frames, A directions, R rings, P samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.train.data.walk.camera import Rays, focal_length, widest_turn
from millstream.train.data.walk.eye import Eye
from millstream.train.data.walk.terrain import Height
from millstream.train.data.walk.walker import PITCH_LIMIT
from millstream.train.data.walk.window import REACH, LandWindow

RINGS = 176
NEAREST = 0.35
"""Metres."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Horizon:
    """Land around N eyes, as rises (metres up for a metre along the ground)."""

    rise: Tensor
    """[N, A, R] of the land at each ring."""
    highest: Tensor
    """[N, A, R]: up to each ring."""
    rings: Tensor
    """[R] metres"""
    span: float
    """Directions go from -span to span, radians to the right of the camera."""

    def before(self, turn: Tensor, far: Tensor) -> Tensor:
        """Highest rise of the land nearer than `far`, in directions `turn` [N, C]; very low where there is
        none."""
        count = self.rise.shape[1]
        column = ((turn / self.span + 1) * ((count - 1) / 2)).round().clamp(0, count - 1).long()
        ring = torch.searchsorted(self.rings, far.clamp(min=0).contiguous()) - 1
        frame = torch.arange(len(self.rise), device=turn.device)[:, None]
        return torch.where(ring >= 0, self.highest[frame, column, ring.clamp(min=0)], -1e3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hits:
    """Points where samples meet the land; all [N, P]."""

    far: Tensor
    """Along the ground, metres."""
    hit: Tensor
    x: Tensor
    z: Tensor
    land: Height
    skyline: Tensor
    """Rise of the farthest land in this direction."""


def look_around(eye: Eye, window: LandWindow, size: tuple[int, int]) -> Horizon:
    span = widest_turn(size, PITCH_LIMIT)
    count = math.ceil(2 * span * focal_length(size)) + 1
    device = eye.x.device
    turn = torch.linspace(-span, span, count, device=device)
    rings = torch.logspace(math.log10(NEAREST), math.log10(REACH), RINGS, device=device)
    yaw = torch.atan2(eye.rotation[:, 0, 2], -eye.rotation[:, 2, 2])[:, None] + turn
    x = eye.x[:, None, None] + yaw.sin()[..., None] * rings
    z = eye.z[:, None, None] - yaw.cos()[..., None] * rings
    y = window.height(x.flatten(1), z.flatten(1)).y.view_as(x)
    rise = (y - eye.y[:, None, None]) / rings
    return Horizon(rise=rise, highest=rise.cummax(dim=2).values, rings=rings, span=span)


def meet(eye: Eye, window: LandWindow, horizon: Horizon, rays: Rays) -> Hits:
    directions = horizon.rise.shape[1]
    place = (rays.turn / horizon.span + 1) * ((directions - 1) / 2)
    column = place.floor().clamp(0, directions - 2)
    part = place - column
    base = (column.long() + directions * torch.arange(len(eye), device=place.device)[:, None]) * RINGS
    rise = rays.rise
    highest = horizon.highest.flatten()
    low = torch.zeros_like(base)
    high = torch.full_like(base, RINGS - 1)
    skyline = torch.lerp(highest[base + RINGS - 1], highest[base + 2 * RINGS - 1], part)
    for _ in range(RINGS.bit_length()):
        middle = (low + high) >> 1
        reached = torch.lerp(highest[base + middle], highest[base + RINGS + middle], part) >= rise
        high = torch.where(reached, middle, high)
        low = torch.where(reached, low, (middle + 1).clamp(max=RINGS - 1))
    after = high.clamp(min=1)
    before = after - 1
    land = horizon.rise.flatten()
    near = horizon.rings[before]
    far = horizon.rings[after]
    above = (rise - torch.lerp(land[base + before], land[base + RINGS + before], part)) * near
    below = (torch.lerp(land[base + after], land[base + RINGS + after], part) - rise) * far
    reach = near + (far - near) * (above / (above + below).clamp(min=1e-6)).clamp(0, 1)
    east = rays.x / rays.level
    south = rays.z / rays.level
    for _ in range(2):  # steps of Newton's method
        ground = window.height(eye.x[:, None] + east * reach, eye.z[:, None] + south * reach)
        over = ground.y - eye.y[:, None] - rise * reach
        fall = (ground.dx * east + ground.dz * south - rise).clamp(min=0.02)
        reach = torch.maximum(torch.minimum(reach - over / fall, far * 1.03), near * 0.97)
    return Hits(
        far=reach,
        hit=skyline >= rise,
        x=eye.x[:, None] + east * reach,
        z=eye.z[:, None] + south * reach,
        land=ground,
        skyline=skyline,
    )
