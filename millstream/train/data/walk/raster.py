"""Fragments: for every solid, the samples that it may cover, and a depth buffer that any order of them fills
alike.

The nearest fragment of a sample is the smallest of whole numbers that hold its depth and then its own index,
so the result does not depend on the order in which a device works.
Shapes: M solids, F fragments, N frames, P samples.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.train.data.light import constant
from millstream.train.data.walk.camera import Rays, focal_length
from millstream.train.data.walk.eye import Eye

NEAR = 0.12
"""Metres; nothing nearer is seen."""
_NONE = (1 << 63) - 1
_SIGNS = tuple(float(sign) for corner in product((-1, 1), repeat=3) for sign in corner)
"""Signs of the eight corners of a box."""


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
    focal = focal_length(size)
    eyes = torch.stack((eye.x, eye.y, eye.z), dim=1)[boxes.frame]
    middle = torch.stack((boxes.x, boxes.y, boxes.z), dim=1) - eyes
    half = torch.stack((boxes.half_x, boxes.half_y, boxes.half_z), dim=1)
    corners = middle[:, None] + half[:, None] * constant(_SIGNS, half.device).view(8, 3)  # [M, 8, 3]
    # no product of matrices: on a GPU it might round to 10 bits
    seen = (corners[..., None] * eye.rotation[boxes.frame][:, None]).sum(dim=2)
    ahead = seen[..., 2]
    place = seen[..., :2] / ahead[..., None].clamp(min=NEAR) * focal
    low_u, low_v = place.amin(dim=1).unbind(1)
    high_u, high_v = place.amax(dim=1).unbind(1)
    low_w = ahead.amin(dim=1)
    high_w = ahead.amax(dim=1)
    around = low_w < NEAR  # the eye is in the box or beside it: look everywhere
    shift = 0.5 + rays.shift
    left = torch.where(around, 0, (low_u + size[1] / 2 - shift).ceil())
    right = torch.where(around, rays.width, (high_u + size[1] / 2 - shift).floor() + 1)
    top = torch.where(around, 0, (low_v + size[0] / 2 - shift).ceil())
    bottom = torch.where(around, rays.height, (high_v + size[0] / 2 - shift).floor() + 1)
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
