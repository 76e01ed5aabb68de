"""The things in a walk: flat figures that turn towards the walker, painted by today's brushes, each with its
mask.

A figure stands upright in a plane across the line of sight. One that travels shows its other side when it is
seen from behind its way.
Shapes: N frames, S = 2 things, F fragments, P samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.train.data.brush import Brush
from millstream.train.data.fields import turn
from millstream.train.data.light import constant
from millstream.train.data.motion import COMET
from millstream.train.data.stamp import TINT
from millstream.train.data.things import DRAW, PAINTS
from millstream.train.data.vocabulary import COLOURS, THINGS
from millstream.train.data.walk.camera import Rays, focal_length
from millstream.train.data.walk.eye import Eye
from millstream.train.data.walk.noise import TILE
from millstream.train.data.walk.paint import through_air
from millstream.train.data.walk.raster import Boxes, fragments
from millstream.train.data.walk.scene import Walks, things_at

REACH = 1.3
"""Half the side of what a figure may cover, in halves of its height."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnThings:
    """One thing of each of N frames; all [N], metres from the frame's tile."""

    x: Tensor
    y: Tensor
    z: Tensor
    half: Tensor
    tilt: Tensor
    way_x: Tensor
    way_z: Tensor
    there: Tensor
    colour: Tensor
    kinds: tuple[int, ...]
    """On the host: which thing each frame has, -1 for none."""

    def boxes(self, frames: Tensor) -> Boxes:
        reach = self.half[frames] * REACH
        return Boxes(frames, self.x[frames], self.y[frames], self.z[frames], reach, reach, reach)


def figures_of(walks: Walks, time_T: Tensor, eye: Eye) -> tuple[DrawnThings, DrawnThings]:
    """The first things of all frames, and the second ones."""
    moments = things_at(walks, time_T)
    device = eye.x.device
    frames = len(time_T)
    corner = eye.tile.cpu().double() * TILE
    figures = []
    for slot in range(2):
        shown = walks.shown[:, slot]
        thing = walks.pair("thing")[:, slot]
        kinds = torch.where(shown, thing, -1).repeat_interleave(frames)
        moved = {
            "x": moments.x[:, slot].flatten() - corner[:, 0],
            "z": moments.z[:, slot].flatten() - corner[:, 1],
            "y": moments.y[:, slot].flatten(),
            "tilt": moments.tilt[:, slot].flatten(),
            "way_x": moments.way_x[:, slot].flatten(),
            "way_z": moments.way_z[:, slot].flatten(),
            "half": walks.thing_half[:, slot].repeat_interleave(frames),
        }
        figures.append(
            DrawnThings(
                **{name: values.float().to(device) for name, values in moved.items()},
                there=(kinds >= 0).to(device),
                colour=walks.pair("colour")[:, slot].repeat_interleave(frames).to(device),
                kinds=tuple(kinds.tolist()),
            )
        )
    return figures[0], figures[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cutout:
    """A thing as the samples see it."""

    layer: Tensor
    """Colour times opacity, [N, 3, P]."""
    opacity: Tensor
    """[N, P], of what nothing hides."""
    depth: Tensor
    """[N, P], infinite where it is not."""


def draw_figures(eye: Eye, rays: Rays, figures: DrawnThings, size: tuple[int, int]) -> Cutout:
    count, samples = rays.x.shape
    device = rays.x.device
    layer = torch.zeros(count * samples, 3, device=device)
    opacity = torch.zeros(count * samples, device=device)
    depth = torch.full((count * samples,), float("inf"), device=device)
    for kind in sorted(set(figures.kinds) - {-1}):
        frames = torch.tensor([i for i, found in enumerate(figures.kinds) if found == kind], device=device)
        _draw_kind(eye, rays, figures, frames, kind, size, (layer, opacity, depth))
    colour = layer.view(count, samples, 3).mT
    x, y, z = (part / (rays.level.square() + rays.y.square()).sqrt() for part in (rays.x, rays.y, rays.z))
    cover = opacity.view(count, samples)
    far = torch.where(depth.isfinite(), depth, 0.0).view(count, samples).clamp(max=40)
    # air lies before the thing and not before what shows through it
    colour = through_air(eye, colour / cover.clamp(min=1e-4)[:, None], x, y, z, far) * cover[:, None]
    return Cutout(layer=colour, opacity=cover, depth=depth.view(count, samples))


def _draw_kind(
    eye: Eye, rays: Rays, figures: DrawnThings, frames: Tensor, kind: int, size: tuple[int, int],
    canvas: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    boxes = figures.boxes(frames)
    found = fragments(eye, boxes, rays, size)
    frame = frames[found.solid]
    to_x = figures.x[frame] - eye.x[frame]
    to_z = figures.z[frame] - eye.z[frame]
    far = (to_x.square() + to_z.square()).sqrt().clamp(min=0.05)
    nx = to_x / far
    nz = to_z / far
    dx, dy, dz = (part.flatten()[found.sample] for part in (rays.x, rays.y, rays.z))
    t = far / (nx * dx + nz * dz).clamp(min=1e-4)
    half = figures.half[frame]
    side = ((t * dx - to_x) * -nz + (t * dz - to_z) * nx) / half
    v = (figures.y[frame] - eye.y[frame] - t * dy) / half
    facing = (figures.way_x[frame] * -nz + figures.way_z[frame] * nx) * 6
    facing = facing.tanh()
    u = side / torch.where(facing.abs() < 0.03, 0.03, facing)
    shape = (-1, 1, 1, 1)
    u, v = turn(u.view(shape), v.view(shape), figures.tilt[frame].view(shape))
    palette = constant(tuple(part for name in COLOURS for part in PAINTS[name]), u.device).view(-1, 3)
    ambient = 1 + TINT * (eye.mood.ambient[frame, :, 0] - 1)
    brush = Brush(
        u,
        paint=palette[figures.colour[frame]].view(-1, 3, 1, 1),
        ambient=ambient.view(-1, 3, 1, 1),
        pixel=(t / (focal_length(size) * half)).view(shape),
        time=eye.time[frame].view(shape),
    )
    DRAW[THINGS[kind]](brush, u, v)
    seen = (t > 0.1) & (t < 1e3 if kind == COMET else t < 4e2)
    layer, opacity, depth = canvas
    cover = brush.opacity.flatten() * seen
    layer[found.sample] = brush.layer.view(-1, 3) * seen[:, None]
    opacity[found.sample] = cover
    depth[found.sample] = torch.where(cover > 0.02, t, float("inf"))
