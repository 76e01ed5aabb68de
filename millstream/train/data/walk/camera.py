"""The walker's eye: axes, intrinsics and the rays of a picture.

World: x to the east, y up, z to the south (right-handed), metres. Yaw 0 looks north (-z) and grows to the
right; pitch grows upwards; degrees. Camera: x right, y down, z forwards, as in OpenCV. A pixel's middle is at
half numbers, so the first one's is (0.5, 0.5). Depth is measured along the camera's z axis.
Shapes: N frames, P samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FIELD_OF_VIEW = 60.0
"""From the picture's upper to its lower edge, degrees."""


def focal_length(size: tuple[int, int]) -> float:
    """In pixels, the same both ways."""
    return size[0] / 2 / math.tan(math.radians(FIELD_OF_VIEW) / 2)


def intrinsics(size: tuple[int, int]) -> Tensor:
    """[3, 3] in pixels, float64."""
    focal = focal_length(size)
    rows = ((focal, 0.0, size[1] / 2), (0.0, focal, size[0] / 2), (0.0, 0.0, 1.0))
    return torch.tensor(rows, dtype=torch.float64)


def rotations(yaw: Tensor, pitch: Tensor) -> Tensor:
    """Camera to world [..., 3, 3]: its columns are the camera's right, down and forwards."""
    a = yaw.deg2rad()
    b = pitch.deg2rad()
    zero = torch.zeros_like(a)
    right = torch.stack((a.cos(), zero, a.sin()), dim=-1)
    ahead = torch.stack((a.sin() * b.cos(), b.sin(), -a.cos() * b.cos()), dim=-1)
    down = torch.stack((a.sin() * b.sin(), -b.cos(), -a.cos() * b.sin()), dim=-1)
    return torch.stack((right, down, ahead), dim=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rays:
    """Lines of sight through a grid of samples of N frames, row by row."""

    height: int
    width: int
    shift: float
    """Offset of each sample from its pixel's middle, in pixels: 0, or -0.5 for corners."""
    x: Tensor
    """Direction to the east [N, P]; the direction's part along the camera's z axis is 1."""
    y: Tensor
    z: Tensor
    level: Tensor
    """Length of the direction's horizontal part."""
    turn: Tensor
    """To the right of the camera's yaw, radians."""

    @property
    def rise(self) -> Tensor:
        """Metres up for a metre along the ground."""
        return self.y / self.level


def rays_of(rotation_N33: Tensor, size: tuple[int, int], *, corners: bool) -> Rays:
    """Rays through the middles of pixels, or through their corners: one more row and column."""
    height = size[0] + corners
    width = size[1] + corners
    shift = -0.5 if corners else 0.0
    device = rotation_N33.device
    focal = focal_length(size)
    across = (torch.arange(width, device=device) + (0.5 + shift - size[1] / 2)) / focal
    along = (torch.arange(height, device=device) + (0.5 + shift - size[0] / 2)) / focal
    u = across.expand(height, width).flatten()
    v = along[:, None].expand(height, width).flatten()
    right, down, ahead = rotation_N33.unbind(2)
    x, y, z = (right[:, i, None] * u + down[:, i, None] * v + ahead[:, i, None] for i in range(3))
    flat = (ahead[:, 0].square() + ahead[:, 2].square()).sqrt()[:, None]  # the camera never looks straight up
    forwards = (x * ahead[:, :1] + z * ahead[:, 2:]) / flat
    level = (x.square() + z.square()).sqrt()
    turn = torch.atan2(u.expand_as(forwards), forwards)
    return Rays(height=height, width=width, shift=shift, x=x, y=y, z=z, level=level, turn=turn)


def widest_turn(size: tuple[int, int], pitch: float) -> float:
    """Largest `turn` of any ray while the camera looks up or down by at most `pitch` degrees, radians."""
    half = math.radians(FIELD_OF_VIEW) / 2
    tall = math.tan(half)
    wide = tall * size[1] / size[0]
    forwards = math.cos(math.radians(pitch)) - tall * math.sin(math.radians(pitch))
    assert forwards > 0, f"a picture {FIELD_OF_VIEW} degrees high cannot look {pitch} degrees down"
    return math.atan2(wide, forwards)
