"""Scenes that are walked in: what today's scenes say, and a world, a place to begin and things in it.

A walk begins on dry ground with an open view, on the shore where the setting is the sea, in a street where it
is the city. Things stand or fly some metres ahead of the beginning; they stay there when the walker leaves.
All of it is drawn on the CPU, in float64, so every device sees the same walks. Nothing here knows pixels.
Shapes: B scenes, S = 2 things, K places that are tried, T moments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from millstream.ops.noise import philox
from millstream.train.data.light import constant
from millstream.train.data.motion import (
    BOBBING,
    CIRCLING,
    COMET,
    DRIFTING,
    FALLING,
    RISING,
    SEA,
    STOUT,
    TRAIN,
)
from millstream.train.data.scene import Scenes, sample_scenes
from millstream.train.data.vocabulary import RUNNERS, SETTINGS, SWIMMERS, THINGS
from millstream.train.data.walk.noise import TILE, place_of
from millstream.train.data.walk.scenery import CITY, HOUSE_CELL, Clearing
from millstream.train.data.walk.terrain import height_of

WALK_SETTINGS = tuple(name for name in SETTINGS if name != "space")
"""Nobody walks in space."""
EYE = 1.7
"""Metres above the ground."""
TRIED = 24
"""Places that are looked at before a walk begins in the best of them."""
HALF_METRES = (1.15, 1.9)
"""Half the height of a small and of a large thing."""
COMET_SCALE = 6.0
"""A comet is so much larger, and so much further away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Walks:
    """One row a scene."""

    scenes: Scenes
    """Attributes and lots, as of the world that pans."""
    world: Tensor
    """[B] int32: the seed of its land."""
    x: Tensor
    """[B] float64, metres: where the walk begins."""
    z: Tensor
    yaw: Tensor
    """[B] float64, degrees."""
    thing_x: Tensor
    """[B, 2] float64: where each thing is at first; the second one's is valid where there is none."""
    thing_z: Tensor
    thing_y: Tensor
    """Metres above the sea, of its middle."""
    thing_half: Tensor
    """Half its height, metres."""
    far: Tensor
    """[B, 2] from the walker at first, metres."""

    def __len__(self) -> int:
        return len(self.world)

    def __getitem__(self, rows: slice | Tensor) -> Walks:
        return Walks(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @property
    def shown(self) -> Tensor:
        """[B, 2]: which things there are."""
        return torch.stack((torch.ones_like(self.scenes.second), self.scenes.second), dim=1)

    def pair(self, name: str) -> Tensor:
        """[B, 2]: an attribute of both things."""
        return torch.stack((getattr(self.scenes, name), getattr(self.scenes, f"{name}2")), dim=1)

    def clearing(self, tile: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Clearing:
        """Lines from the beginning to the things, and a train's rails, in metres from tiles [B, 2]."""
        corner = torch.zeros(len(self), 2, dtype=torch.float64) if tile is None else tile.double() * TILE
        x = self.x[:, None] - corner[:, :1]
        z = self.z[:, None] - corner[:, 1:]
        things_x = self.thing_x - corner[:, :1]
        things_z = self.thing_z - corner[:, 1:]
        absent = ~self.shown | (self.pair("thing") == COMET)
        things_x = torch.where(absent, x, things_x)
        things_z = torch.where(absent, z, things_z)
        aside_x, aside_z = self.sideways()
        rails = (self.pair("thing") == TRAIN) & self.shown
        reach = torch.where(rails, 400.0, 0.0)
        lines = (
            torch.cat((x.expand(-1, 2), things_x - aside_x * reach), 1),
            torch.cat((z.expand(-1, 2), things_z - aside_z * reach), 1),
            torch.cat((things_x, things_x + aside_x * reach), 1),
            torch.cat((things_z, things_z + aside_z * reach), 1),
            torch.cat((torch.full_like(things_x, 2.6), torch.where(rails, 3.0, self.thing_half + 1.2)), 1),
        )
        return Clearing(*(line.to(dtype) for line in lines))

    def sideways(self) -> tuple[Tensor, Tensor]:
        """[B, 1] each: the way that things travel, east and south: across the first view."""
        angle = self.yaw.deg2rad()[:, None]
        side = self.scenes.direction.double()[:, None]
        return angle.cos() * side, angle.sin() * side


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Places of the things; all [B, 2, T] in float64."""

    x: Tensor
    y: Tensor
    z: Tensor
    tilt: Tensor
    """Radians; positive is nose down."""
    way_x: Tensor
    """Direction in which a thing faces, east and south; shorter than 1 while it turns about."""
    way_z: Tensor


def sample_walks(count: int, *, seed: int, held_out: bool | None = False, start: int = 0) -> Walks:
    """Walks `start` to `start + count` of a seed; `held_out` as in `sample_scenes`."""
    scenes = sample_scenes(count, seed=seed, held_out=held_out, start=start, settings=WALK_SETTINGS)
    index = torch.arange(start, start + count)
    world = _words(index, 0, seed)[:, 0].sub(1 << 31).to(torch.int32)
    words = torch.stack([_words(index, 1 + k, seed) for k in range(TRIED)], dim=1)
    lots = words.double() * 2.0**-32  # [B, K, 4]
    return _choose_start(scenes, world, lots)


def _words(index: Tensor, block: int, seed: int) -> Tensor:
    """Four words of 32 bits for each scene [B, 4]; the third counter keeps them apart from those of
    `sample_scenes`."""
    number, ours, zero = (torch.full_like(index, word) for word in (block, 1, 0))
    words = philox((index, number, ours, zero), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    return torch.stack(words, dim=1)


def _choose_start(scenes: Scenes, world: Tensor, lots: Tensor) -> Walks:
    """Look at some places and begin at the best."""
    x = (lots[..., 0] - 0.5) * 3000
    z = (lots[..., 1] - 0.5) * 3000
    yaw = lots[..., 2] * 360
    sea = (scenes.setting == SEA)[:, None]
    city = (scenes.setting == CITY)[:, None]
    for _ in range(6):  # down or up to the shore
        land = height_of(place_of(x, z, world, torch.float64), scenes.setting)
        steep = (land.dx.square() + land.dz.square()).clamp(min=0.0025)
        step = (land.y - 1.3) / steep
        x = torch.where(sea, x - (step * land.dx).clamp(-60, 60), x)
        z = torch.where(sea, z - (step * land.dz).clamp(-60, 60), z)
    downhill = torch.atan2(-land.dx, land.dz).rad2deg() + (lots[..., 2] - 0.5) * 70
    quarter = (lots[..., 2] * 4).floor() * 90
    along = quarter % 180 == 0  # looks north or south: stands in a street that runs so
    yaw = torch.where(sea, downhill, torch.where(city, quarter + (lots[..., 3] - 0.5) * 24, yaw))
    x = torch.where(city & along, (x / HOUSE_CELL).round() * HOUSE_CELL, x)
    z = torch.where(city & ~along, (z / HOUSE_CELL).round() * HOUSE_CELL, z)
    far, off, half = _layout(scenes)
    angle = (yaw[..., None] + off[:, None]).deg2rad()
    there_x = x[..., None] + far[:, None] * angle.sin()  # [B, K, 2]
    there_z = z[..., None] - far[:, None] * angle.cos()
    best = _score(scenes, world, (x, z, yaw), (there_x, there_z), lots).argmax(dim=1)
    row = torch.arange(len(world))
    thing_x = there_x[row, best]
    thing_z = there_z[row, best]
    x = x[row, best]
    z = z[row, best]
    level = height_of(place_of(thing_x, thing_z, world, torch.float64), scenes.setting).y.clamp(min=0)
    eye = height_of(place_of(x[:, None], z[:, None], world, torch.float64), scenes.setting).y + EYE
    thing_y = _altitude(scenes, level, eye, far, half)
    return Walks(
        scenes=scenes,
        world=world,
        x=x,
        z=z,
        yaw=yaw[row, best] % 360,
        thing_x=thing_x,
        thing_z=thing_z,
        thing_y=thing_y,
        thing_half=half,
        far=far,
    )


def _layout(scenes: Scenes) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distance of each thing ahead, its degrees to the right, and half its height; [B, 2] each."""
    stout = constant(tuple(STOUT.get(name, 1.0) for name in THINGS), scenes.thing.device).double()
    thing = torch.stack((scenes.thing, scenes.thing2), dim=1)
    size = torch.stack((scenes.size, scenes.size2), dim=1)
    scale = torch.stack((scenes.scale, -scenes.scale), dim=1).double()
    half = constant(HALF_METRES, thing.device).double()[size] * stout[thing] * (1 + 0.08 * scale)
    level = torch.stack((scenes.level, 1 - scenes.level), dim=1).double()
    comet = torch.where(thing == COMET, COMET_SCALE, 1.0).double()
    half = half * comet
    pair = scenes.second[:, None]
    far = half * torch.where(pair, 6.6 + 1.6 * level, 5.4 + 1.8 * level)
    side = scenes.side.double()
    sign = torch.where(side < 0, -1.0, 1.0)
    off = torch.stack((sign * (11 + 3 * side.abs()), -sign * (11 + 3 * side.abs())), dim=1)
    alone = torch.stack((9 * side, torch.zeros_like(side)), dim=1)
    return far, torch.where(pair, off, alone), half


def _score(
    scenes: Scenes,
    world: Tensor,
    here: tuple[Tensor, Tensor, Tensor],
    there: tuple[Tensor, Tensor],
    lots: Tensor,
) -> Tensor:
    """Score each place to begin at [B, K]: dry, level and open, no thing in the wrong element, a lake in view."""
    x, z, yaw = here
    tried = x.shape[1]
    angles = (yaw[..., None] + yaw.new_tensor((-20.0, 0.0, 20.0))).deg2rad()
    reach = yaw.new_tensor((6.0, 14.0, 30.0, 70.0, 160.0, 350.0))
    view_x = (x[..., None, None] + angles.sin()[..., None] * reach).flatten(2)
    view_z = (z[..., None, None] - angles.cos()[..., None] * reach).flatten(2)
    all_x = torch.cat((x[..., None], there[0], view_x), dim=2).flatten(1)
    all_z = torch.cat((z[..., None], there[1], view_z), dim=2).flatten(1)
    land = height_of(place_of(all_x, all_z, world), scenes.setting)
    y = land.y.unflatten(1, (tried, -1))
    ground = y[..., 0]
    steep = land.dx.square().add(land.dz.square()).sqrt().unflatten(1, (tried, -1))[..., 0]
    ahead = y[..., 3:].unflatten(2, (3, -1))
    wall = ((ahead - ground[..., None, None] - EYE) / reach).amax(dim=(2, 3))
    thing = torch.stack((scenes.thing, scenes.thing2), dim=1)
    swims = _is_one_of(SWIMMERS, thing) & (scenes.setting == SEA)[:, None]
    runs = _is_one_of(RUNNERS, thing)
    there_y = y[..., 1:3]
    wrong = (swims[:, None] & (there_y > -0.35)) | (runs[:, None] & (there_y < 0.3))
    wrong[..., 1] &= scenes.second[:, None]
    hidden = ((there_y - ground[..., None]).clamp(min=0) * (~swims[:, None])).amax(dim=2)
    lake = (ahead < 0).double().mean(dim=(2, 3)).clamp(max=0.4)
    score: Tensor = lots[..., 3] - 100 * (ground < 0.5) - 12 * (steep - 0.25).clamp(min=0)
    score -= 50 * wrong.sum(dim=2) + 14 * (wall - 0.09).clamp(min=0) + 0.4 * hidden - 3 * lake
    return score


def _altitude(scenes: Scenes, level: Tensor, eye: Tensor, far: Tensor, half: Tensor) -> Tensor:
    """Return the altitude of each thing's middle: on the water, on the rails, or in the air and not too high to be seen."""
    thing = torch.stack((scenes.thing, scenes.thing2), dim=1)
    lot = torch.stack((scenes.level, 1 - scenes.level), dim=1).double()
    lift = torch.where(thing == COMET, 0.38, 0.02 + 0.11 * lot)
    motion = torch.stack((scenes.motion, scenes.motion2), dim=1)
    lift = torch.where(motion == RISING, 0.02, torch.where(motion == FALLING, 0.04, lift))
    flies = torch.maximum(level + 1.15 * half + 0.3, eye + far * lift)
    swims = _is_one_of(SWIMMERS, thing) & (scenes.setting == SEA)[:, None]
    afloat = constant(
        tuple({"boat": 0.8, "whale": 0.3, "fish": 0.4}.get(name, 0.0) for name in THINGS), thing.device
    )
    y = torch.where(swims, afloat[thing] * half, flies)
    return torch.where(_is_one_of(RUNNERS, thing), level + 0.42 * half, y)


def things_at(walks: Walks, time_T: Tensor) -> Moments:
    """Return the places of the things at moments, in seconds since the walk began."""
    scenes = walks.scenes
    time = time_T.double()
    motion = walks.pair("motion")[..., None]
    thing = walks.pair("thing")
    angle = 2 * math.pi * torch.stack((scenes.phase, scenes.phase2), dim=1).double()[..., None]
    far = walks.far[..., None]
    fast = (scenes.speed == 1)[:, None, None]
    swims = (_is_one_of(SWIMMERS, thing) & (scenes.setting == SEA)[:, None])[..., None]
    runs = _is_one_of(RUNNERS, thing)[..., None]
    drift = torch.where(fast, 0.11, 0.035) * far
    patrol = torch.where(fast, 0.55, 0.25) * time + angle
    turn = torch.where(fast, 1.9, 0.9) * time + angle
    climb = torch.where(fast, 0.12, 0.045) * time
    drifts = motion == DRIFTING
    circles = motion == CIRCLING
    bobs = motion == BOBBING
    along = torch.where(drifts, drift * time, torch.zeros_like(far))
    along = torch.where(drifts & swims, 0.16 * far * (patrol.sin() - angle.sin()), along)
    along = torch.where(circles, 0.13 * far * (turn.cos() - angle.cos()), along)
    tall = torch.where(swims, 0.0, torch.where(circles, 0.08, 0.05))
    up = torch.where(circles, tall * far * turn.sin(), 0.004 * far * (1.3 * time + angle).sin())
    up = torch.where(bobs, torch.where(swims, 0.012, 0.05) * far * turn.sin(), up)
    up = torch.where(motion == RISING, 0.36 * far * (1 - (-climb / 0.36).exp()), up)
    up = torch.where(motion == FALLING, 0.26 * far * (-climb / 0.26).exp(), up)
    up = torch.where(runs, 0.0, torch.where(swims, up * 0.5, up))
    tilt = 0.04 * (1.1 * time + angle).cos()
    tilt = torch.where(circles | bobs, 0.16 * turn.cos(), tilt)
    comet = (thing == COMET)[..., None]
    tilt = torch.where(comet & (motion == FALLING), 0.7, torch.where(comet & (motion == RISING), -0.7, tilt))
    tilt = torch.where(runs, 0.0, tilt)
    facing = torch.where(drifts & swims, (patrol.cos() * 6).tanh(), torch.ones_like(patrol))
    facing = torch.where(circles, (-turn.sin() * 6).tanh(), facing)
    aside_x, aside_z = (part[..., None] for part in walks.sideways())
    y = walks.thing_y[..., None] + up
    if bool(runs.any()):  # a train climbs with the land
        x = walks.thing_x[..., None] + along * aside_x
        z = walks.thing_z[..., None] + along * aside_z
        ground = height_of(place_of(x.flatten(1), z.flatten(1), walks.world, torch.float64), scenes.setting)
        half = walks.thing_half[..., None]
        y = torch.where(runs, ground.y.view_as(x).clamp(min=0) + 0.42 * half, y)
        slope = (ground.dx.view_as(x) * aside_x + ground.dz.view_as(x) * aside_z).atan()
        tilt = torch.where(runs, -slope, tilt)
    shape = (len(walks), 2, len(time))
    return Moments(
        x=(walks.thing_x[..., None] + along * aside_x).expand(shape),
        y=y.expand(shape),
        z=(walks.thing_z[..., None] + along * aside_z).expand(shape),
        tilt=tilt.expand(shape),
        way_x=(facing * aside_x).expand(shape),
        way_z=(facing * aside_z).expand(shape),
    )


def _is_one_of(names: frozenset[str], thing: Tensor) -> Tensor:
    return constant(tuple(float(name in names) for name in THINGS), thing.device)[thing] > 0
