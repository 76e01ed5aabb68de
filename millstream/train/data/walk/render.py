"""Walks to pictures, depth and masks.

Each frame is painted twice, through the middles of its pixels and through their corners, and a pixel's colour
is half its middle and an eighth of each corner: edges are smooth, and depth is exactly that of the middle.
Every frame comes of its pose and its moment alone, so clips can be continued and split in any way.
Shapes: B walks, T moments, N frames of a piece, P samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from millstream.train.data.motion import COMET, TRAIN
from millstream.train.data.render import FPS
from millstream.train.data.walk.camera import Rays, focal_length, intrinsics, rays_of
from millstream.train.data.walk.eye import Eye, Mood, eyes_of, mood_of
from millstream.train.data.walk.noise import TILE
from millstream.train.data.walk.paint import ground, lit_ground, through_air, water
from millstream.train.data.walk.scene import Walks
from millstream.train.data.walk.sky import sky
from millstream.train.data.walk.solids import (
    HOUSE_LABEL,
    TREE_LABEL,
    Blocks,
    Casters,
    Quadrics,
    cast_shadows,
    draw_houses,
    draw_trees,
    house_parts,
    solids_around,
    tree_parts,
    tree_shadows,
)
from millstream.train.data.walk.surface import Horizon, look_around, meet
from millstream.train.data.walk.terrain import height_of
from millstream.train.data.walk.things import Cutout, DrawnThings, draw_figures, figures_of
from millstream.train.data.walk.walker import Poses
from millstream.train.data.walk.weather import falling, grey_air
from millstream.train.data.walk.window import LandWindow, windows_around

LABELS = ("sky", "ground", "water", "tree", "house", "thing", "second thing")
"""Names of what a pixel shows; an id is a name's place. A rock is a tree here."""
SKY, GROUND, WATER = range(3)
THING = LABELS.index("thing")
PIECE_PIXELS = {"cpu": 1 << 18, "cuda": 1 << 22}
"""Pixels painted at once, by kind of device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """Frames of B walks."""

    pixels: Tensor
    """[B, T, 3, Y, X] in -1 to 1."""
    depth: Tensor
    """[B, T, Y, X] float32, metres along the camera's axis; infinite in the sky."""
    masks: Tensor
    """[B, T, 2, Y, X] uint8: how much of a pixel each thing covers, of 255."""
    labels: Tensor
    """[B, T, Y, X] uint8, ids of `LABELS`."""
    camera_to_world: Tensor
    """[B, T, 3, 4] float64, on the CPU; axes as in `camera`."""
    intrinsics: Tensor
    """[3, 3] float64, pixels."""


def render_walks(
    walks: Walks,
    poses: Poses,
    *,
    start: int = 0,
    frames: int | None = None,
    size: tuple[int, int] = (256, 256),
    fps: float = FPS,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Rendered:
    """Frames `start` to `start + frames` of every walk, at poses that begin with frame 0."""
    assert all(side % 16 == 0 and side > 0 for side in size), f"sides must be multiples of 16, got {size}"
    assert len(walks) == len(poses.x), f"{len(walks)} walks and poses of {len(poses.x)}"
    count = poses.x.shape[1] - start if frames is None else frames
    part = poses.frames(start, count)
    time_T = torch.arange(start, start + count, dtype=torch.float64) / fps
    place = torch.device(device)
    shape = (len(walks), count)
    pieces: list[_Piece] = []
    with torch.no_grad(), torch.autocast(place.type, enabled=False):
        mood = mood_of(walks, place)
        step = max(1, PIECE_PIXELS.get(place.type, 1 << 18) // (size[0] * size[1]))
        clips = max(1, step // count)
        for row in range(0, len(walks), clips):
            rows = slice(row, row + clips)
            for first in range(0, count, step):
                moments = slice(first, first + step)
                pieces.append(
                    _paint(
                        walks[rows], _rows(part, rows).frames(first, step), mood, rows, time_T[moments], size
                    )
                )
    pixels, depth, masks, labels = (
        _joined([getattr(piece, name) for piece in pieces], shape)
        for name in ("pixels", "depth", "masks", "labels")
    )
    return Rendered(
        pixels=pixels.to(dtype),
        depth=depth,
        masks=masks,
        labels=labels,
        camera_to_world=part.camera_to_world(),
        intrinsics=intrinsics(size),
    )


def _rows(poses: Poses, rows: slice) -> Poses:
    return Poses(
        x=poses.x[rows], y=poses.y[rows], z=poses.z[rows], yaw=poses.yaw[rows], pitch=poses.pitch[rows]
    )


def _joined(parts: list[Tensor], shape: tuple[int, int]) -> Tensor:
    """Pieces lie clip by clip, so their frames lie in order."""
    whole: Tensor = torch.cat(parts).unflatten(0, shape)
    return whole


@dataclass(frozen=True, kw_only=True, slots=True)
class _Piece:
    pixels: Tensor
    depth: Tensor
    masks: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """Surfaces that are seen through one grid of samples, without things: colours [N, 3, P], else [N, P]."""

    rays: Rays
    image: Tensor
    depth: Tensor
    label: Tensor
    shadow: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Around:
    """Parts that the grids of a frame share."""

    eye: Eye
    window: LandWindow
    horizon: Horizon
    rails: Tensor
    figures: tuple[DrawnThings, DrawnThings]
    trees: Quadrics
    houses: Blocks
    casters: list[Casters]


def _paint(
    walks: Walks, poses: Poses, mood: Mood, rows: slice, time_T: Tensor, size: tuple[int, int]
) -> _Piece:
    eye = eyes_of(
        walks,
        poses,
        mood.rows(torch.arange(rows.start, rows.start + len(walks), device=mood.dull.device)),
        time_T,
    )
    around = _look(walks, poses, eye, time_T, size)
    middle = _grid(around, rays_of(eye.rotation, size, corners=False), size)
    # shadows are soft: those of the corners are the mean of the pixels around
    padded = pad(middle.shadow.view(len(eye), 1, *size), (1, 1, 1, 1), mode="replicate")
    between = _corners(padded).flatten(1) / 4
    corner = _grid(around, rays_of(eye.rotation, size, corners=True), size, between)
    shape = (len(eye), 3, *size)
    around_image = corner.image.view(len(eye), 3, size[0] + 1, size[1] + 1)
    image = 0.5 * middle.image.view(shape) + 0.125 * _corners(around_image)
    depth = middle.depth
    label = middle.label
    image = image.flatten(2)
    masks = []
    corner_depth = corner.depth.view(len(eye), size[0] + 1, size[1] + 1)
    for slot in (1, 0):
        cutout = draw_figures(eye, middle.rays, around.figures[slot], size)
        share = _free(cutout, depth, corner_depth, size)
        image = image * (1 - cutout.opacity * share)[:, None] + cutout.layer * share[:, None]
        cover = cutout.opacity * share
        depth = torch.where(cover > 0.5, cutout.depth, depth)
        label = torch.where(cover > 0.5, THING + slot, label)
        masks.append(cover)
    # what the first thing hides is not seen of the second
    masks[0] = masks[0] * (1 - masks[1] * (label == THING))
    image = grey_air(eye, image)
    image = falling(eye, middle.rays, depth, image, size)
    return _Piece(
        pixels=image.clamp(0, 1).mul(2).sub(1).view(shape),
        depth=depth.view(len(eye), *size),
        masks=torch.stack(masks[::-1], dim=1).mul(255).round().to(torch.uint8).view(len(eye), 2, *size),
        labels=label.to(torch.uint8).view(len(eye), *size),
    )


def _corners(image: Tensor) -> Tensor:
    """Sum of the four corners of each pixel."""
    rows = image[..., :-1, :] + image[..., 1:, :]
    return rows[..., :-1] + rows[..., 1:]


def _free(cutout: Cutout, depth: Tensor, corner_depth: Tensor, size: tuple[int, int]) -> Tensor:
    """[N, P]: share of each pixel in which nothing stands before the thing."""
    mine = cutout.depth.view(-1, *size)
    share = 0.5 * (depth.view_as(mine) > mine).float()
    for row in (slice(None, -1), slice(1, None)):
        for column in (slice(None, -1), slice(1, None)):
            share = share + 0.125 * (corner_depth[:, row, column] > mine).float()
    return share.flatten(1)


def _look(walks: Walks, poses: Poses, eye: Eye, time_T: Tensor, size: tuple[int, int]) -> _Around:
    x = poses.x.flatten()
    z = poses.z.flatten()
    row = torch.arange(len(walks)).repeat_interleave(len(time_T))
    tile = eye.tile.cpu().double()
    device = eye.x.device
    setting = walks.scenes.setting.to(device)
    world = walks.world.to(device)
    window, scene_W, middle_W2 = windows_around(x, z, row, tile, world, setting)
    corner = middle_W2.div(TILE).floor()
    local = (middle_W2 - corner * TILE).float().to(device)
    tile_W = corner.to(torch.int32)
    clearing = walks[scene_W].clearing(tile_W, torch.float32)
    index = scene_W.to(device)
    solids = solids_around(
        local[:, 0], local[:, 1], tile_W.to(device), world[index], setting[index],
        type(clearing)(*(part.to(device) for part in clearing)),
    )  # fmt: skip
    shift = (corner[window.index.cpu()] - tile).mul(TILE).float().to(device)
    figures = figures_of(walks, time_T, eye)
    horizon = look_around(eye, window, size)
    offset = (shift[:, 0], shift[:, 1])
    trees = tree_parts(eye, solids, offset, window.index, horizon)
    houses = house_parts(eye, solids, offset, window.index, horizon)
    casters = [tree_shadows(trees), Casters(houses.boxes, houses.base)]
    casters += [_caster(eye, found) for found in figures]
    return _Around(
        eye=eye,
        window=window,
        horizon=horizon,
        rails=_rails(walks, row, tile).to(device),
        figures=figures,
        trees=trees,
        houses=houses,
        casters=casters,
    )


def _rails(walks: Walks, row: Tensor, tile: Tensor) -> Tensor:
    """[N, 4, 2]: a point of each thing's track, in metres from the tile, and its direction."""
    aside_x, aside_z = (part.expand(-1, 2) for part in walks.sideways())
    runs = (walks.pair("thing") == TRAIN) & walks.shown
    x = torch.where(runs[row], walks.thing_x[row] - tile[:, :1] * TILE, 1e6)
    z = torch.where(runs[row], walks.thing_z[row] - tile[:, 1:] * TILE, 1e6)
    return torch.stack((x, z, aside_x[row], aside_z[row]), dim=1).float()


def _grid(around: _Around, rays: Rays, size: tuple[int, int], shadow: Tensor | None = None) -> _Grid:
    eye = around.eye
    length = (rays.level.square() + rays.y.square()).sqrt()
    x = rays.x / length
    y = rays.y / length
    z = rays.z / length
    pixel = 1 / focal_length(size)
    found = meet(eye, around.window, around.horizon, rays)
    image = sky(eye, x, y, z, pixel)
    depth = torch.where(found.hit, found.far / rays.level, float("inf"))
    # a pixel covers more along the line of sight than across it: the longer the flatter
    flat = (rays.rise - found.land.dx * x - found.land.dz * z).abs().clamp(min=0.03)
    across = found.far * pixel
    footprint = across * (1 / flat).clamp(1, 6).sqrt() * 0.8 + 0.01
    if shadow is None:
        shadow = cast_shadows(eye, rays, around.casters, found.x, found.z, size)
    paint = ground(eye, found.x, found.z, found.land, footprint, around.rails)
    shade = 1 - 0.3 * (1 - 0.6 * eye.mood.dull) * (1 - shadow)
    lit = lit_ground(eye, paint * shade[:, None], found.land, shadow)
    label = torch.full_like(found.far, GROUND).long()
    falls = rays.rise < -1e-5
    reach = torch.where(falls, eye.y[:, None] / -rays.rise.clamp(max=-1e-5), float("inf"))
    wet = falls & (reach < torch.where(found.hit, found.far, 1e5)) & (found.land.y < 0.02)
    deep = torch.where(found.hit, (found.far - reach) * -rays.rise, 40.0).clamp(0, 40)
    near = torch.where(wet, reach, 1.0)
    sea = water(eye, (x, y, z), near, deep, found.skyline, near * pixel * 2.2 + 0.01)
    lit = torch.where(wet[:, None], sea, lit)
    depth = torch.where(wet, near / rays.level, depth)
    label = torch.where(wet, WATER, label)
    solid = found.hit | wet
    label = torch.where(solid, label, SKY)
    for layer, name in (
        (draw_trees(eye, rays, around.trees, size), TREE_LABEL),
        (draw_houses(eye, rays, around.houses, size), HOUSE_LABEL),
    ):
        closer = layer.depth < depth
        lit = torch.where(closer[:, None], layer.colour, lit)
        depth = torch.where(closer, layer.depth, depth)
        label = torch.where(closer, name, label)
    seen = depth.isfinite()
    lit = through_air(eye, lit, x, y, z, torch.where(seen, depth, 0.0) * length)
    image = torch.where(seen[:, None], lit, image)
    return _Grid(rays=rays, image=image, depth=depth, label=label, shadow=shadow)


def _caster(eye: Eye, figures: DrawnThings) -> Casters:
    """Shadow of a thing; a comet has none."""
    casts = torch.tensor([found not in (-1, COMET) for found in figures.kinds], device=figures.x.device)
    boxes = figures.boxes(torch.arange(len(figures.x), device=figures.x.device))
    half = torch.where(casts, figures.half * 0.7, 0.0)
    foot = height_of(eye.places(figures.x[:, None], figures.z[:, None]), eye.mood.setting).y[:, 0]
    return Casters(boxes._replace(half_x=half, half_y=half, half_z=half), foot.clamp(min=0))
