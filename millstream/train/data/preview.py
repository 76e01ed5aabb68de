"""A contact sheet: one row a scene, one column a moment."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from millstream.ops.pixels import to_bytes
from millstream.train.data.render import FPS, render
from millstream.train.data.scene import Scenes

GUTTER = 4
"""Pixels between pictures."""


def contact_sheet(
    scenes: Scenes,
    *,
    columns: int = 6,
    seconds: float = 4.0,
    size: tuple[int, int] = (256, 256),
    fps: float = FPS,
) -> np.ndarray:
    """[H, W, 3] in uint8; moments are spread evenly over `seconds`."""
    assert columns > 0, f"a sheet has columns, got {columns}"
    moments = [round(column * seconds * fps / max(columns - 1, 1)) for column in range(columns)]
    pictures = [
        as_bytes(render(scenes, start=moment, frames=1, size=size, fps=fps)[:, 0]) for moment in moments
    ]
    return tile(torch.stack(pictures, dim=1)).numpy()


def as_bytes(pictures: Tensor) -> Tensor:
    """[..., 3, H, W] in -1 to 1 to [..., H, W, 3] in uint8, on the CPU."""
    return to_bytes(pictures).movedim(-3, -1).cpu()


def tile(pictures: Tensor) -> Tensor:
    """Rows and columns of pictures [R, C, H, W, 3] to one picture on white, with a gutter around each."""
    rows, columns, height, width, _ = pictures.shape
    sheet = torch.full((rows, columns, height + GUTTER, width + GUTTER, 3), 255, dtype=torch.uint8)
    sheet[:, :, :height, :width] = pictures
    sheet = sheet.permute(0, 2, 1, 3, 4).reshape(rows * (height + GUTTER), columns * (width + GUTTER), 3)
    frame = torch.full((sheet.shape[0] + GUTTER, sheet.shape[1] + GUTTER, 3), 255, dtype=torch.uint8)
    frame[GUTTER:, GUTTER:] = sheet
    return frame
