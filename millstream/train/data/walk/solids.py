"""Trees, rocks and houses as solids that lines of sight meet exactly: quadrics, and boxes with slanted roofs.

Every solid of a window is looked up once; each frame turns those within sight into fragments.
Shapes: N frames, W windows, C cells, M solids, F fragments, P samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.train.data.fields import smooth
from millstream.train.data.light import DUSK, constant
from millstream.train.data.walk.camera import Rays
from millstream.train.data.walk.eye import SNOW, Eye
from millstream.train.data.walk.noise import Places, hash_cells, uniform, value_noise
from millstream.train.data.walk.paint import fade, shine_on
from millstream.train.data.walk.raster import Boxes, Fragments, fragments, nearest
from millstream.train.data.walk.scenery import (
    CACTUS,
    FIR,
    HOUSE_CELL,
    ROCK,
    ROUND,
    TREE_CELL,
    Clearing,
    Houses,
    Trees,
    cells_around,
    grown,
    houses_in,
    trees_in,
)
from millstream.train.data.walk.surface import Horizon
from millstream.train.data.walk.terrain import height_of
from millstream.train.data.walk.window import SNAP

TREES_TO = 250.0
"""Metres; trees shrink to nothing over the last quarter of it."""
HOUSES_TO = 420.0
SHADOWS_TO = 110.0
TREE_LABEL = 3
HOUSE_LABEL = 4
_INF = float("inf")

# Parts of each kind of tree: shape (1 ellipsoid, -1 cone, 0 cylinder), middle or tip (of the height), half or
# whole height (of the height), radius (of the width), off the middle (of the width), paint.
_FIR_PARTS = (
    (0, 0.1, 0.12, 0.13, 0.0, 0), (-1, 0.60, 0.44, 1.0, 0.0, 1), (-1, 0.81, 0.40, 0.78, 0.0, 1),
    (-1, 1.0, 0.36, 0.54, 0.0, 1),
)  # fmt: skip
_ROUND_PARTS = (
    (0, 0.25, 0.26, 0.11, 0.0, 0), (1, 0.66, 0.33, 0.88, 0.0, 2), (1, 0.55, 0.22, 0.66, 0.52, 2),
    (1, 0.60, 0.24, 0.62, -0.55, 2),
)  # fmt: skip
_ROCK_PARTS = (
    (1, 0.25, 0.72, 0.95, 0.0, 3), (1, 0.12, 0.5, 0.7, 0.7, 3), (1, 0.1, 0.35, 0.55, -0.8, 3), (2, 0, 0, 0, 0, 3),
)  # fmt: skip
_CACTUS_PARTS = (
    (1, 0.48, 0.54, 0.85, 0.0, 4), (1, 0.55, 0.24, 0.5, 1.9, 4), (1, 0.66, 0.20, 0.46, -1.8, 4),
    (1, 0.40, 0.08, 1.9, 0.0, 4),
)  # fmt: skip
assert (FIR, ROUND, ROCK, CACTUS) == (0, 1, 2, 3), "parts lie in the order of kinds"
_PARTS = (_FIR_PARTS, _ROUND_PARTS, _ROCK_PARTS, _CACTUS_PARTS)
_WIDEST = (0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
"""Part of each kind that casts its shadow."""
_PAINTS = ((0.42, 0.30, 0.21), (0.17, 0.42, 0.25), (0.34, 0.56, 0.22), (0.60, 0.54, 0.50), (0.34, 0.54, 0.30))
_ROUND_TINTS = ((0.30, 0.54, 0.22), (0.42, 0.62, 0.22), (0.24, 0.48, 0.24), (0.82, 0.56, 0.20))
_WALLS = (
    (0.94, 0.90, 0.82), (0.86, 0.72, 0.56), (0.74, 0.42, 0.34), (0.70, 0.80, 0.84), (0.92, 0.82, 0.58),
    (0.78, 0.74, 0.72),
)  # fmt: skip
_ROOFS = ((0.66, 0.28, 0.22), (0.46, 0.30, 0.26), (0.34, 0.36, 0.42), (0.52, 0.40, 0.30))


@dataclass(frozen=True, kw_only=True, slots=True)
class Solids:
    """Solids around windows: [W, C] each, metres from the window's tile; `there` last of all."""

    trees: Trees
    tree_y: Tensor
    """Height of the ground."""
    houses: Houses
    house_y: Tensor


def solids_around(
    x: Tensor, z: Tensor, tile: Tensor, seed: Tensor, setting: Tensor, clearing: Clearing
) -> Solids:
    """Solids around the middles [W] of windows."""
    middle = Places(x[:, None], z[:, None], tile, seed)
    margin = SNAP / 2 + TREE_CELL
    cells = cells_around(middle, TREE_CELL, TREES_TO + margin)
    trees = trees_in(*cells, tile, seed, setting, clearing)
    land = height_of(Places(trees.x, trees.z, tile, seed), setting)
    trees = replace(trees, there=grown(trees, land))
    cells = cells_around(middle, HOUSE_CELL, HOUSES_TO + margin)
    houses = houses_in(*cells, tile, seed, setting, clearing)
    ground = height_of(Places(houses.x, houses.z, tile, seed), setting)
    houses = replace(houses, there=grown(houses, ground))
    kept, order = _first(trees.there)
    kept_houses, order_houses = _first(houses.there)
    return Solids(
        trees=Trees(**{f.name: getattr(trees, f.name).gather(1, order)[:, :kept] for f in fields(Trees)}),
        tree_y=land.y.gather(1, order)[:, :kept],
        houses=Houses(
            **{
                f.name: getattr(houses, f.name).gather(1, order_houses)[:, :kept_houses]
                for f in fields(Houses)
            }
        ),
        house_y=ground.y.gather(1, order_houses)[:, :kept_houses],
    )


def _first(there: Tensor) -> tuple[int, Tensor]:
    """An order in which those that are there come first, and how many columns then suffice."""
    return int(there.sum(dim=1).max()), there.int().argsort(dim=1, descending=True, stable=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quadrics:
    """M round solids: width * (u^2 + w^2) + height * v^2 = bulk, between two heights; all [M]."""

    boxes: Boxes
    foot: Tensor
    """Height of the ground."""
    base: Tensor
    """Height that v is counted from."""
    width: Tensor
    height: Tensor
    bulk: Tensor
    low: Tensor
    """Lowest and highest v."""
    high: Tensor
    paint: Tensor
    """[M, 3]"""
    leafy: Tensor
    widest: Tensor
    """True of one part of each tree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """M boxes, or gables on them; all [M]. v is counted from the foot of the walls."""

    boxes: Boxes
    base: Tensor
    cos: Tensor
    sin: Tensor
    half_u: Tensor
    half_w: Tensor
    low: Tensor
    high: Tensor
    slant: Tensor
    """Slope of a roof, metres up for each metre across; 0 of a box."""
    ridge: Tensor
    """Height of the ridge."""
    paint: Tensor
    wall: Tensor
    """True where there are windows."""
    tower: Tensor
    lot: Tensor
    word: Tensor


def _near(
    eye: Eye, there: Tensor, x: Tensor, y: Tensor, z: Tensor, wide: Tensor, reach: float, horizon: Horizon
) -> tuple[Tensor, Tensor, Tensor]:
    """Frames and columns of those that may be seen, and how far they are: within reach, not behind the eye,
    with a top (height `y`) that the land before them does not hide, not lost in the haze."""
    u = x - eye.x[:, None]
    w = z - eye.z[:, None]
    far = (u.square() + w.square()).sqrt()
    yaw_x = eye.rotation[:, 0, 0, None]
    yaw_z = eye.rotation[:, 2, 0, None]
    aside = u * yaw_x + w * yaw_z
    ahead = u * yaw_z - w * yaw_x  # the way the eye looks, on the ground
    beside = (aside.abs() - 1.5 * wide) < ahead.clamp(min=0) * math.tan(min(horizon.span, 1.5)) + 6
    seen = there & (far < reach) & (far < 5 * eye.mood.sight) & (ahead > -12) & beside
    seen &= (y - eye.y[:, None]) / far > horizon.before(torch.atan2(aside, ahead), far - 4) - 0.01
    frame, column = seen.nonzero(as_tuple=True)  # waits for the device
    return frame, column, far[frame, column]


def tree_parts(
    eye: Eye, solids: Solids, offset: tuple[Tensor, Tensor], index: Tensor, horizon: Horizon
) -> Quadrics:
    """Parts of the trees within sight; `offset` [N] leads from each window's tile to the frame's."""
    trees = solids.trees
    all_x = trees.x[index] + offset[0][:, None]
    all_z = trees.z[index] + offset[1][:, None]
    frame, column, far = _near(
        eye,
        trees.there[index],
        all_x,
        (solids.tree_y + trees.tall)[index],
        all_z,
        trees.wide[index],
        TREES_TO,
        horizon,
    )
    window = index[frame]
    kind = trees.kind[window, column]
    shrink = smooth(TREES_TO, TREES_TO * 0.75, far)
    tall = trees.tall[window, column] * shrink
    wide = trees.wide[window, column] * shrink
    lot = trees.lot[window, column]
    parts = constant(tuple(n for k in _PARTS for p in k for n in p), eye.x.device).view(4, 4, 6)[
        kind
    ]  # [M, 4, 6]
    shape, middle, half, radius, off, paint = parts.unbind(2)
    angle = (lot * 6.283)[:, None]
    radius = radius * wide[:, None]
    half = half * tall[:, None]
    middle = middle * tall[:, None]
    off = off * wide[:, None]
    ball = shape == 1
    cone = shape == -1
    low = -half
    high = torch.where(cone, 0.0, half)
    x = all_x[frame, column][:, None] + off * angle.cos()
    z = all_z[frame, column][:, None] + off * angle.sin()
    base = solids.tree_y[window, column][:, None] - 0.1 + middle
    tints = constant(tuple(n for tint in _ROUND_TINTS for n in tint), eye.x.device).view(4, 3)
    autumn = torch.where(lot > 0.94, 3, (lot * 3).long().clamp(max=2))
    colours = constant(tuple(n for p in _PAINTS for n in p), eye.x.device).view(-1, 3)[paint.long()]
    colours = torch.where((paint == 2)[..., None], tints[autumn][:, None], colours)
    more = uniform(trees.word[window, column], 9)[:, None, None]
    colours = colours * (0.86 + 0.28 * more)
    keep = (shape != 2).flatten()
    mid = base + (low + high) / 2

    def flat(values: Tensor) -> Tensor:
        return values.expand(len(frame), 4).flatten()[keep]

    width = 1 / radius.clamp(min=1e-3).square()
    tight = 1 / half.clamp(min=1e-3).square()
    return Quadrics(
        boxes=Boxes(
            flat(frame[:, None]),
            flat(x),
            flat(mid),
            flat(z),
            flat(radius),
            flat((high - low) / 2),
            flat(radius),
        ),
        foot=flat(solids.tree_y[window, column][:, None]),
        base=flat(base),
        width=flat(width),
        height=flat(torch.where(ball, tight, torch.where(cone, -tight, 0.0))),
        bulk=flat(torch.where(cone, 0.0, 1.0)),
        low=flat(low),
        high=flat(high),
        paint=colours.flatten(0, 1)[keep],
        leafy=flat(((paint == 1) | (paint == 2)).float()),
        widest=flat(constant(_WIDEST, eye.x.device).view(4, 4)[kind] > 0),
    )


def house_parts(
    eye: Eye, solids: Solids, offset: tuple[Tensor, Tensor], index: Tensor, horizon: Horizon
) -> Blocks:
    """Walls, roof and chimney of the houses within sight."""
    houses = solids.houses
    all_x = houses.x[index] + offset[0][:, None]
    all_z = houses.z[index] + offset[1][:, None]
    frame, column, far = _near(
        eye, houses.there[index], all_x, (solids.house_y + houses.tall + houses.roof + 3)[index], all_z,
        houses.half_x[index], HOUSES_TO, horizon,
    )  # fmt: skip
    window = index[frame]
    shrink = smooth(HOUSES_TO, HOUSES_TO * 0.8, far)

    def of(values: Tensor) -> Tensor:
        return values[window, column]

    tall = of(houses.tall) * shrink
    roof = of(houses.roof) * shrink
    half_u = of(houses.half_x)
    half_w = of(houses.half_z)
    lot = of(houses.lot)
    word = of(houses.word)
    tower = half_u > 6
    gable = roof > 0
    eaves = 0.35
    slant = roof / half_w
    device = eye.x.device
    walls = constant(tuple(n for p in _WALLS for n in p), device).view(-1, 3)
    roofs = constant(tuple(n for p in _ROOFS for n in p), device).view(-1, 3)
    wall = walls[(uniform(word, 11) * len(_WALLS)).long()]
    wall = torch.where(tower[:, None], wall * 0.55 + 0.24, wall)
    tile = roofs[(uniform(word, 12) * len(_ROOFS)).long()]
    zero = torch.zeros_like(tall)
    one = torch.ones_like(tall)
    # walls up to the gable, roof with eaves, chimney (or what stands on a flat roof)
    ridge = tall + roof
    chimney_off = half_u * 0.5 * torch.where(lot < 0.5, -1.0, 1.0)
    turn = of(houses.turn)
    cos = turn.cos()
    sin = turn.sin()
    x = all_x[frame, column]
    z = all_z[frame, column]
    columns = {
        "x": (x, x, x + chimney_off * cos),
        "z": (z, z, z + chimney_off * sin),
        "half_u": (half_u, half_u + eaves, torch.where(tower, 2.2, 0.4) * one),
        "half_w": (half_w, half_w + eaves, torch.where(tower, 1.8, 0.4) * one),
        "low": (zero - 4, tall - eaves * slant, torch.where(gable, tall, tall - 0.5)),
        "high": (ridge, ridge + 0.22, torch.where(gable, ridge + 0.6 * shrink, tall + 2.2 * shrink)),
        "slant": (slant, slant, zero),
        "ridge": (torch.where(gable, ridge, 1e4), ridge + 0.22, one * 1e4),
        "wall": (one, zero, zero),
    }
    stacked = {name: torch.stack(values, dim=1).flatten() for name, values in columns.items()}
    keep = torch.stack((one > 0, gable, one > 0), dim=1).flatten()
    part = {name: values[keep] for name, values in stacked.items()}

    def spread(values: Tensor) -> Tensor:
        return values.repeat_interleave(3, dim=0)[keep]

    cos = spread(cos)
    sin = spread(sin)
    base = spread(of(solids.house_y))
    paint = torch.stack((wall, tile, torch.where(tower[:, None], wall * 0.85, tile * 0.8)), dim=1).flatten(
        0, 1
    )
    return Blocks(
        boxes=Boxes(
            spread(frame), part["x"], base + (part["low"] + part["high"]) / 2, part["z"],
            (part["half_u"] * cos).abs() + (part["half_w"] * sin).abs(),
            (part["high"] - part["low"]) / 2,
            (part["half_u"] * sin).abs() + (part["half_w"] * cos).abs(),
        ),
        base=base, cos=cos, sin=sin, half_u=part["half_u"], half_w=part["half_w"], low=part["low"],
        high=part["high"], slant=part["slant"], ridge=part["ridge"], paint=paint[keep], wall=part["wall"] > 0,
        tower=spread(tower), lot=spread(lot), word=spread(word),
    )  # fmt: skip


def _lines(eye: Eye, rays: Rays, boxes: Boxes, found: Fragments) -> tuple[Tensor, ...]:
    """Return each fragment's eye, from the middle of its solid, and its line's direction; [F]."""
    frame = boxes.frame[found.solid]
    origin = (
        eye.x[frame] - boxes.x[found.solid],
        eye.y[frame],
        eye.z[frame] - boxes.z[found.solid],
    )
    return (*origin, *(part.flatten()[found.sample] for part in (rays.x, rays.y, rays.z)))


@dataclass(frozen=True, kw_only=True, slots=True)
class SolidLayer:
    """Solids as samples see them; all [N, P]."""

    depth: Tensor
    """Along the camera's axis; infinite where there is none."""
    colour: Tensor
    """[N, 3, P], lit, with no air before it."""


def draw_trees(eye: Eye, rays: Rays, parts: Quadrics, size: tuple[int, int]) -> SolidLayer:
    found = fragments(eye, parts.boxes, rays, size)
    ox, oy, oz, dx, dy, dz = _lines(eye, rays, parts.boxes, found)
    oy = oy - parts.base[found.solid]
    width = parts.width[found.solid]
    height = parts.height[found.solid]
    a = width * (dx * dx + dz * dz) + height * dy * dy
    b = width * (ox * dx + oz * dz) + height * oy * dy
    c = width * (ox * ox + oz * oz) + height * oy * oy - parts.bulk[found.solid]
    root = b * b - a * c
    a = torch.where(a.abs() < 1e-9, 1e-9, a)
    spread = root.clamp(min=0).sqrt()
    low = parts.low[found.solid]
    high = parts.high[found.solid]
    depth = torch.full_like(a, _INF)
    for sign in (1, -1):
        t = (-b + sign * spread) / a
        v = oy + t * dy
        good = (root >= 0) & (t > 0.1) & (v >= low) & (v <= high)
        depth = torch.where(good & (t < depth), t, depth)
    samples = len(eye) * rays.height * rays.width
    winner, there = nearest(found, depth, samples)
    if not len(depth):
        return _nothing(eye, rays)
    solid = found.solid[winner]
    t = depth[winner]
    safe = torch.where(there, t, 1.0)
    nx = width[winner] * (ox[winner] + safe * dx[winner])
    ny = height[winner] * (oy[winner] + safe * dy[winner])
    nz = width[winner] * (oz[winner] + safe * dz[winner])
    scale = (nx * nx + ny * ny + nz * nz).clamp(min=1e-12).rsqrt()
    facing = nx * dx[winner] + ny * dy[winner] + nz * dz[winner]
    inner = torch.where(facing > 0, -1.0, 1.0)  # seen from inside a cone: its dark lower side
    shape = (len(eye), rays.height * rays.width)
    normal = tuple((part * scale * inner).view(shape) for part in (nx, ny, nz))
    x = (eye.x[:, None] + (safe.view(shape) * rays.x)).contiguous()
    z = eye.z[:, None] + safe.view(shape) * rays.z
    y = eye.y[:, None] + safe.view(shape) * rays.y
    leafy = parts.leafy[solid].view(shape)
    footprint = safe.view(shape) * (1.2 / rays.height) + 1e-3
    places = Places(x + 0.7 * y, z - 0.6 * y, eye.tile, eye.seed)
    coarse = value_noise(places, 0.5, 60) * fade(footprint, 0.5)
    dapple = coarse + 0.7 * value_noise(places, 0.125, 61) * fade(footprint, 0.125)
    up = ((oy[winner] + safe * dy[winner] - low[winner]) / (high[winner] - low[winner]).clamp(min=1e-3)).view(
        shape
    )
    tone = 1 + leafy * (0.16 * dapple + 0.26 * (up - 0.6)) + (1 - leafy) * 0.10 * dapple
    tone = tone * torch.where(inner.view(shape) < 0, 0.55, 1.0)
    paint = parts.paint[solid].view(len(eye), -1, 3).mT * tone[:, None]
    white = (eye.mood.weather == SNOW).float()[:, None] * smooth(0.15, 0.7, normal[1] + 0.25 * coarse) * 0.85
    paint = torch.lerp(paint, torch.full_like(paint, 0.95), white[:, None])
    bent = (normal[0], (normal[1] + 0.25 * leafy).clamp(max=1), normal[2])
    return SolidLayer(
        depth=torch.where(there, t, _INF).view(shape), colour=shine_on(eye.mood, paint, bent, 0.85)
    )


def _nothing(eye: Eye, rays: Rays) -> SolidLayer:
    empty = torch.full_like(rays.x, _INF)
    return SolidLayer(depth=empty, colour=torch.zeros_like(empty)[:, None].expand(-1, 3, -1))


def draw_houses(eye: Eye, rays: Rays, parts: Blocks, size: tuple[int, int]) -> SolidLayer:
    found = fragments(eye, parts.boxes, rays, size)
    if not len(found.solid):
        return _nothing(eye, rays)
    ox, oy, oz, dx, dy, dz = _lines(eye, rays, parts.boxes, found)
    solid = found.solid
    oy = oy - parts.base[solid]
    cos = parts.cos[solid]
    sin = parts.sin[solid]
    ou = ox * cos + oz * sin
    ow = oz * cos - ox * sin
    du = dx * cos + dz * sin
    dw = dz * cos - dx * sin
    slant = parts.slant[solid]
    ridge = parts.ridge[solid]
    planes = (
        (du, parts.half_u[solid] - ou), (-du, parts.half_u[solid] + ou),
        (dw, parts.half_w[solid] - ow), (-dw, parts.half_w[solid] + ow),
        (dy, parts.high[solid] - oy), (-dy, oy - parts.low[solid]),
        (dy + slant * dw, ridge - oy - slant * ow), (dy - slant * dw, ridge - oy + slant * ow),
    )  # fmt: skip
    enter = torch.full_like(ou, -_INF)
    leave = torch.full_like(ou, _INF)
    side = torch.zeros_like(solid)
    for number, (along, room) in enumerate(planes):
        t = room / torch.where(along.abs() < 1e-9, 1e-9, along)
        goes_in = along < 0
        later = goes_in & (t > enter)
        enter = torch.where(later, t, enter)
        side = torch.where(later, number, side)
        leave = torch.where(goes_in, leave, torch.minimum(leave, t))
    depth = torch.where((enter < leave) & (enter > 0.1), enter, _INF)
    winner, there = nearest(found, depth, len(eye) * rays.height * rays.width)
    t = torch.where(there, depth[winner], 1.0)
    solid = solid[winner]
    side = side[winner]
    u = ou[winner] + t * du[winner]
    v = oy[winner] + t * dy[winner]
    w = ow[winner] + t * dw[winner]
    slope = (1 + parts.slant[solid].square()).rsqrt()
    steep = parts.slant[solid] * slope
    nu = torch.where(side == 0, 1.0, torch.where(side == 1, -1.0, 0.0))
    nw = torch.where(side == 2, 1.0, torch.where(side == 3, -1.0, 0.0))
    nw = torch.where(side == 6, steep, torch.where(side == 7, -steep, nw))
    nv = torch.where(side >= 6, slope, torch.where(side == 4, 1.0, 0.0))
    cos = parts.cos[solid]
    sin = parts.sin[solid]
    shape = (len(eye), rays.height * rays.width)
    normal = ((nu * cos - nw * sin).view(shape), nv.view(shape), (nu * sin + nw * cos).view(shape))
    footprint = t * (1.2 / rays.height) + 1e-3
    paint, lamp = _facade(parts, solid, side, u, v, w, footprint, eye, shape)
    white = (eye.mood.weather == SNOW).float()[:, None] * smooth(0.3, 0.6, normal[1]) * 0.9
    paint = torch.lerp(paint, torch.full_like(paint, 0.96), white[:, None])
    lit = shine_on(eye.mood, paint, normal)
    warm = lit.new_tensor((1.0, 0.80, 0.44))[:, None]
    lit = torch.lerp(lit, warm, lamp[:, None])
    return SolidLayer(depth=torch.where(there, depth[winner], _INF).view(shape), colour=lit)


def _facade(
    parts: Blocks, solid: Tensor, side: Tensor, u: Tensor, v: Tensor, w: Tensor, footprint: Tensor, eye: Eye,
    shape: tuple[int, int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Paint of walls and roofs with their windows [N, 3, P], and how brightly a lamp burns behind [N, P]."""
    tower = parts.tower[solid]
    wall = parts.wall[solid] & (side < 4)
    gable_end = side < 2
    along = torch.where(gable_end, w, u)
    room = torch.where(gable_end, parts.half_w[solid], parts.half_u[solid])
    step = torch.where(tower, 2.6, 2.1)
    floor = torch.where(tower, 3.0, 2.4)
    column = ((along + room) / step).floor()
    place = (along + room) - column * step - step / 2
    row = (v / floor).floor()
    rise = v - row * floor - floor * 0.55
    soft = footprint.clamp(min=0.02)
    half = torch.where(tower, 0.85, 0.48)
    within = ((half - place.abs()) / soft + 0.5).clamp(0, 1) * ((0.75 - rise.abs()) / soft + 0.5).clamp(0, 1)
    free = (along.abs() + half < room) & (v < parts.ridge[solid] - 1.6) & (row >= 0)
    top = torch.where(
        parts.ridge[solid] > 1e3,
        parts.high[solid],
        parts.ridge[solid] - parts.slant[solid] * parts.half_w[solid],
    )
    free = free & (row * floor + floor * 0.55 + 0.75 < top + 0.1)
    glass = within * (wall & free) * fade(footprint, 2.4)
    far_tone = torch.where(wall & free & tower, 0.30 * (1 - fade(footprint, 2.4)), 0.0)
    door_half = 0.55
    door = (
        ((door_half - (along - 0.1 * room).abs()) / soft + 0.5).clamp(0, 1)
        * ((2.0 - v) / soft + 0.5).clamp(0, 1)
    ) * (wall & (side == 2) & ~tower)
    tiles = torch.sin(v * (6.283 / 0.32)) * fade(footprint, 0.32) * 0.07
    boards = torch.sin(v * (6.283 / 0.45)) * fade(footprint, 0.45) * 0.035
    tone = 1 + torch.where(parts.wall[solid], boards * ~tower, tiles)
    paint = parts.paint[solid] * tone[:, None]
    frame_soft = ((half + 0.10 - place.abs()) / soft + 0.5).clamp(0, 1) * (
        (0.85 - rise.abs()) / soft + 0.5
    ).clamp(0, 1)
    frame = (frame_soft - within).clamp(min=0) * (wall & free & ~tower) * fade(footprint, 1.0)
    paint = torch.lerp(paint, torch.full_like(paint, 0.95), (frame * 0.8)[:, None])
    paint = torch.lerp(
        paint, paint.new_tensor((0.30, 0.40, 0.50)).expand_as(paint), (glass * 0.85 + far_tone)[:, None]
    )
    paint = torch.lerp(paint, paint.new_tensor((0.42, 0.26, 0.18)).expand_as(paint), door[:, None])
    lot = uniform(hash_cells(column.int() + 57 * side.int(), row.int(), parts.word[solid]))
    dark = ((eye.mood.time >= DUSK).float()[:, None] * torch.ones(shape, device=u.device)).flatten()
    lamp = dark * (lot > 0.45) * (0.55 + 0.45 * lot) * glass * (1 - door) + dark * far_tone * 0.5
    return paint.view(*shape, 3).mT, lamp.view(shape)


class Casters(NamedTuple):
    """Return the solids that cast shadows."""

    boxes: Boxes
    foot: Tensor
    """Height of the ground below [M]."""


def tree_shadows(trees: Quadrics) -> Casters:
    """One shadow a tree: that of its widest part."""
    widest = trees.widest.nonzero()[:, 0]  # waits for the device
    return Casters(Boxes(*(part[widest] for part in trees.boxes)), trees.foot[widest])


def cast_shadows(
    eye: Eye, rays: Rays, casters: list[Casters], x: Tensor, z: Tensor, size: tuple[int, int]
) -> Tensor:
    """Light that is left on the ground [N, P]: a soft ellipse away from the sun for each caster.
    x, z [N, P] are the ground's places, in metres from the tile."""
    left = torch.ones_like(x)
    for caster in casters:
        left = torch.minimum(left, _ellipses(eye, rays, caster, x, z, size))
    return left


def _ellipses(eye: Eye, rays: Rays, caster: Casters, x: Tensor, z: Tensor, size: tuple[int, int]) -> Tensor:
    boxes, foot = caster
    frame = boxes.frame
    far = ((boxes.x - eye.x[frame]).square() + (boxes.z - eye.z[frame]).square()).sqrt()
    wide = torch.maximum(boxes.half_x, boxes.half_z)
    kept = ((far < SHADOWS_TO) & (wide > 0.3)).nonzero()[:, 0]  # waits for the device
    boxes = Boxes(*(part[kept] for part in boxes))
    frame = boxes.frame
    sun = eye.mood.sun[frame]
    level = (sun[:, 0].square() + sun[:, 2].square()).sqrt()
    # a shadow falls as far off as its caster hangs high; long ones are cut short
    wide = wide[kept]
    reach = torch.minimum((boxes.y - foot[kept]).clamp(min=0) * level / sun[:, 1], 3.0 * wide)
    way_x = -sun[:, 0] / level
    way_z = -sun[:, 2] / level
    off = reach * 0.8
    middle_x = boxes.x + way_x * off
    middle_z = boxes.z + way_z * off
    long = wide * 0.95 + reach * 0.5
    across = wide * 0.95
    box = Boxes(frame, middle_x, foot[kept], middle_z, long, 0.4 + 0.2 * (long + off), long)
    found = fragments(eye, box, rays, size)
    dx = x.flatten()[found.sample] - middle_x[found.solid]
    dz = z.flatten()[found.sample] - middle_z[found.solid]
    wx = way_x[found.solid]
    wz = way_z[found.solid]
    u = (dx * wx + dz * wz) / long[found.solid]
    w = (dz * wx - dx * wz) / across[found.solid]
    away = (u * u + w * w).sqrt()
    fade_out = smooth(SHADOWS_TO, SHADOWS_TO * 0.6, far[kept])[found.solid]
    light = 1 - smooth(1.12, 0.62, away) * fade_out
    left = torch.ones_like(x).flatten()
    return left.scatter_reduce_(0, found.sample, light, "amin").view_as(x)
