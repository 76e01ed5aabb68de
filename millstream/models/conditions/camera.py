"""A camera's motion as an entry of a DiT: the ray of every latent cell, added to the patch embedding.

A ray is given by Plücker coordinates, its moment about the origin and its direction. The origin is the camera
of the frame before the chunk, so every motion counts and none is counted from the epoch's beginning, which
may be hours ago. What enters is the difference to the rays of a camera that stood still there with the
model's own lens: standing still is exactly nothing.
A motion [R|t] takes points from a frame's camera to that of the frame before it: t is the way it moved.
Shapes: B batch, F frames, T tokens a frame, D width, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from millstream.core.chunk_work import RAY
from millstream.core.conditions import STILL, CameraMotion

FOCAL_WIDTHS = 1.0
"""Focal length of a model's own lens, in widths of the picture: it sees 53 degrees from side to side."""


class CameraInjector(nn.Module):
    """One linear map without a bias, from the rays of a patch; untrained, it changes nothing."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.rays = nn.Linear(RAY * patch**2, width, bias=False)
        nn.init.zeros_(self.rays.weight)

    def forward(self, rays_BF6YX: Tensor) -> Tensor:
        """Entry of each token [B, F, T, D], to be added to its patch embedding."""
        p = self.patch
        cells = rays_BF6YX.unflatten(-2, (-1, p)).unflatten(-1, (-1, p))  # B F 6 rows p columns p
        entry: Tensor = self.rays(cells.permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(2, 3))
        return entry


def moves(frames: Sequence[CameraMotion]) -> bool:
    """Return whether anything differs from a camera that stands still with the model's own lens."""
    return any(frame.motion != STILL or frame.lens is not None for frame in frames)


def ray_changes(frames: Sequence[CameraMotion], latent_size: tuple[int, int]) -> Tensor:
    """Rays of a chunk's frames less those of a camera at rest [F, 6, Y, X], float32."""
    rest = _rays(torch.eye(4, dtype=torch.float64), own_lens(latent_size), latent_size)
    pose = torch.eye(4, dtype=torch.float64)
    changes = list[Tensor]()
    for frame in frames:
        step = torch.eye(4, dtype=torch.float64)
        step[:3] = torch.tensor(frame.motion, dtype=torch.float64).view(3, 4)
        pose = pose @ step
        changes.append(_rays(pose, frame.lens or own_lens(latent_size), latent_size) - rest)
    return torch.stack(changes).float()


def own_lens(latent_size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The lens of a frame that names none: square pixels, the centre in the middle."""
    rows, columns = latent_size
    return FOCAL_WIDTHS, FOCAL_WIDTHS * columns / rows, 0.5, 0.5


def _rays(pose: Tensor, lens: tuple[float, float, float, float], latent_size: tuple[int, int]) -> Tensor:
    """Moment and direction of the ray through each latent cell's middle, [6, Y, X]."""
    fx, fy, cx, cy = lens
    rows, columns = latent_size
    y = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    x = (torch.arange(columns, dtype=torch.float64) + 0.5) / columns
    down, right = torch.meshgrid((y - cy) / fy, (x - cx) / fx, indexing="ij")
    seen = torch.nn.functional.normalize(torch.stack([right, down, torch.ones_like(right)]), dim=0)
    direction = torch.einsum("ij,jyx->iyx", pose[:3, :3], seen)
    origin = pose[:3, 3, None, None].expand_as(direction)
    return torch.cat([torch.linalg.cross(origin, direction, dim=0), direction])
