"""Fragments: for every solid, the samples that it may cover, and a depth buffer that any order of them fills
alike.

The nearest fragment of a sample is the smallest of whole numbers that hold its depth and then its own index,
so the result does not depend on the order in which a device works.
Shapes: M solids, F fragments, N frames, P samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from millstream.train.data.walk.camera import Rays, focal_length
from millstream.train.data.walk.eye import Eye

NEAR = 0.12
"""Metres; nothing nearer is seen."""
_NONE = (1 << 63) - 1


class Boxes(NamedTuple):
    """Boxes along the world's axes, around each of M solids; metres from the tile of its frame [M]."""

    frame: Tensor
    x: Tensor
    y: Tensor
    z: Tensor
    half_x: Tensor
    half_y: Tensor
    half_z: Tensor


class Fragments(NamedTuple):
    solid: Tensor
    """[F] int64: which solid."""
    sample: Tensor
    """[F] int64: which of the N * P samples."""


def fragments(eye: Eye, boxes: Boxes, rays: Rays, size: tuple[int, int]) -> Fragments:
    """Samples within the picture of each box. One wait for the device: how many there are."""
    low_u = high_u = low_v = high_v = low_w = high_w = boxes.x
    focal = focal_length(size)
    first = True
    rotation = eye.rotation[boxes.frame]
    middle_x = boxes.x - eye.x[boxes.frame]
    middle_y = boxes.y - eye.y[boxes.frame]
    middle_z = boxes.z - eye.z[boxes.frame]
    for corner in range(8):
        x = middle_x + (boxes.half_x if corner & 1 else -boxes.half_x)
        y = middle_y + (boxes.half_y if corner & 2 else -boxes.half_y)
        z = middle_z + (boxes.half_z if corner & 4 else -boxes.half_z)
        right, down, ahead = (
            x * rotation[:, 0, i] + y * rotation[:, 1, i] + z * rotation[:, 2, i] for i in range(3)
        )
        u = right / ahead.clamp(min=NEAR)
        v = down / ahead.clamp(min=NEAR)
        if first:
            low_u = high_u = u
            low_v = high_v = v
            low_w = high_w = ahead
            first = False
        low_u = torch.minimum(low_u, u)
        high_u = torch.maximum(high_u, u)
        low_v = torch.minimum(low_v, v)
        high_v = torch.maximum(high_v, v)
        low_w = torch.minimum(low_w, ahead)
        high_w = torch.maximum(high_w, ahead)
    around = low_w < NEAR  # the eye is in the box or beside it: look everywhere
    shift = 0.5 + rays.shift
    left = torch.where(around, 0, (low_u * focal + size[1] / 2 - shift).ceil())
    right = torch.where(around, rays.width, (high_u * focal + size[1] / 2 - shift).floor() + 1)
    top = torch.where(around, 0, (low_v * focal + size[0] / 2 - shift).ceil())
    bottom = torch.where(around, rays.height, (high_v * focal + size[0] / 2 - shift).floor() + 1)
    left = left.clamp(0, rays.width).long()
    top = top.clamp(0, rays.height).long()
    wide = (right.clamp(0, rays.width).long() - left).clamp(min=0)
    tall = (bottom.clamp(0, rays.height).long() - top).clamp(min=0)
    area = torch.where(high_w > NEAR, wide * tall, 0)
    ends = area.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    solid = torch.arange(len(area), device=area.device).repeat_interleave(area, output_size=total)
    inside = torch.arange(total, device=area.device) - (ends - area)[solid]
    row = inside // wide[solid]
    sample = (boxes.frame[solid] * rays.height + top[solid] + row) * rays.width
    return Fragments(solid, sample + left[solid] + inside - row * wide[solid])


def nearest(found: Fragments, depth: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """For each sample its nearest fragment [N * P], and where there is one; `depth` [F] is infinite where a
    solid is missed, else positive."""
    order = depth.contiguous().view(torch.int32).long() << 32
    order = order | torch.arange(len(depth), device=depth.device)
    order = torch.where(depth.isfinite(), order, _NONE)
    buffer = torch.full((samples,), _NONE, device=depth.device)
    buffer.scatter_reduce_(0, found.sample, order, "amin")
    there = buffer != _NONE
    return torch.where(there, buffer & 0xFFFFFFFF, 0), there
