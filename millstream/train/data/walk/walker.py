"""The walker: poses out of actions, exactly.

A frame's keys act for the whole frame, first the turn, then the step in the new direction. The step is not
taken when it ends in water, in a house or in a tree's trunk; nobody slides along. The eye is `EYE` above the
ground, at once.
All in float64 on the CPU, so a track gives the same poses on every machine. Shapes: B walks, T frames.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from millstream.train.data.actions_file import KEYS, ActionRow
from millstream.train.data.walk.actions import Actions
from millstream.train.data.walk.camera import rotations
from millstream.train.data.walk.noise import TILE, Places, place_of
from millstream.train.data.walk.scene import EYE, Walks
from millstream.train.data.walk.scenery import (
    HOUSE_CELL,
    TREE_CELL,
    Houses,
    Trees,
    cells_around,
    grown,
    houses_in,
    inside,
    trees_in,
)
from millstream.train.data.walk.terrain import height_of

WALK_SPEED = 3.0
"""Metres a second along the ground, in every direction."""
TURN_SPEED = 60.0
"""Degrees a second, by the arrow keys."""
LOOK_SPEED = 30.0
"""Degrees a second, up and down."""
PITCH_LIMIT = 40.0
"""Degrees, up and down."""
WADE = 0.25
"""Depth of water that one still walks through, metres."""
SHOULDER = 0.35
"""Distance that is kept from walls and trunks, metres."""
LOOKS_AHEAD = 16
"""Frames for which the obstacles near by are the same: looked up once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Poses:
    """Place and direction of the eye in each frame; all [B, T] in float64."""

    x: Tensor
    y: Tensor
    z: Tensor
    yaw: Tensor
    """Degrees, not wrapped."""
    pitch: Tensor

    def camera_to_world(self) -> Tensor:
        """[B, T, 3, 4] in float64; axes as in `camera`."""
        place = torch.stack((self.x, self.y, self.z), dim=-1)
        return torch.cat((rotations(self.yaw, self.pitch), place[..., None]), dim=-1)

    def frames(self, start: int, count: int) -> Poses:
        part = slice(start, start + count)
        return Poses(
            x=self.x[:, part], y=self.y[:, part], z=self.z[:, part], yaw=self.yaw[:, part],
            pitch=self.pitch[:, part],
        )  # fmt: skip


def walk(walks: Walks, actions: Actions, *, fps: float) -> Poses:
    """Poses of all frames of a track, from the walk's beginning on."""
    assert len(walks) == len(actions), f"{len(walks)} walks and {len(actions)} tracks"
    reach = LOOKS_AHEAD * WALK_SPEED / fps
    assert reach < 2 * TREE_CELL - 3, f"{fps} frames a second are too few: {reach:g} m between two looks"
    keys = {name: actions.keys[..., i].double().cpu() for i, name in enumerate(KEYS)}
    ahead = keys["w"] - keys["s"]
    aside = keys["d"] - keys["a"]
    step = WALK_SPEED / fps / torch.maximum((ahead.square() + aside.square()).sqrt(), torch.ones_like(ahead))
    look = actions.look.cpu()
    turn = (keys["right"] - keys["left"]) * TURN_SPEED / fps + look[..., 0]
    raised = (keys["up"] - keys["down"]) * LOOK_SPEED / fps + look[..., 1]
    yaw = walks.yaw[:, None] + turn.cumsum(dim=1)
    angle = yaw.deg2rad()
    step_x = (angle.sin() * ahead + angle.cos() * aside) * step
    step_z = (angle.sin() * aside - angle.cos() * ahead) * step
    x = walks.x
    z = walks.z
    pitch = torch.zeros_like(walks.yaw)
    rows = []
    for t in range(actions.frames):
        if t % LOOKS_AHEAD == 0:
            obstacles = obstacles_near(walks, x, z)
        pitch = (pitch + raised[:, t]).clamp(-PITCH_LIMIT, PITCH_LIMIT)
        next_x = x + step_x[:, t]
        next_z = z + step_z[:, t]
        stops = obstacles.stop(next_x, next_z) | _is_wet(walks, next_x, next_z)
        x = torch.where(stops, x, next_x)
        z = torch.where(stops, z, next_z)
        rows.append((x, z, pitch))
    x, z, pitch = (torch.stack(column, dim=1) for column in zip(*rows, strict=True))
    y = height_of(place_of(x, z, walks.world, torch.float64), walks.scenes.setting).y.clamp(min=0) + EYE
    return Poses(x=x, y=y, z=z, yaw=yaw, pitch=pitch)


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacles:
    """Trunks and walls near the walkers, in metres of the world [B, C]."""

    trees: Trees
    trees_stand: Tensor
    houses: Houses
    houses_stand: Tensor

    def stop(self, x: Tensor, z: Tensor) -> Tensor:
        """[B]: nobody can stand at x, z."""
        far = (self.trees.x - x[:, None]).square() + (self.trees.z - z[:, None]).square()
        trunk = self.trees_stand & (far < (self.trees.trunk + SHOULDER).square())
        wall = self.houses_stand & inside(self.houses, x[:, None], z[:, None], SHOULDER)
        return trunk.any(dim=1) | wall.any(dim=1)


def obstacles_near(walks: Walks, x: Tensor, z: Tensor) -> Obstacles:
    """Obstacles of everybody who comes no further than `LOOKS_AHEAD` frames can take him."""
    setting = walks.scenes.setting
    places = place_of(x[:, None], z[:, None], walks.world, torch.float64)
    corner = places.tile.double() * TILE
    clearing = walks.clearing(places.tile)
    grid = cells_around(places, TREE_CELL, 2 * TREE_CELL)
    trees = trees_in(*grid, places.tile, walks.world, setting, clearing)
    land = height_of(Places(trees.x, trees.z, places.tile, places.seed), setting)
    trees_stand = grown(trees, land)
    grid = cells_around(places, HOUSE_CELL, HOUSE_CELL)
    houses = houses_in(*grid, places.tile, walks.world, setting, clearing)
    land = height_of(Places(houses.x, houses.z, places.tile, places.seed), setting)
    return Obstacles(
        trees=replace(trees, x=trees.x + corner[:, :1], z=trees.z + corner[:, 1:]),
        trees_stand=trees_stand,
        houses=replace(houses, x=houses.x + corner[:, :1], z=houses.z + corner[:, 1:]),
        houses_stand=grown(houses, land),
    )


def _is_wet(walks: Walks, x: Tensor, z: Tensor) -> Tensor:
    places = place_of(x[:, None], z[:, None], walks.world, torch.float64)
    return height_of(places, walks.scenes.setting).y[:, 0] < -WADE


def action_rows(actions: Actions, poses: Poses, walk_row: int) -> list[ActionRow]:
    """One walk's frames, for its file: what was done and where it led."""
    columns = zip(
        actions.keys[walk_row].tolist(),
        actions.look[walk_row].tolist(),
        *(part[walk_row].tolist() for part in (poses.x, poses.y, poses.z, poses.yaw, poses.pitch)),
        strict=True,
    )
    return [
        ActionRow(
            frame=frame,
            keys=tuple(key for key, down in zip(KEYS, held, strict=True) if down),
            look_x=look[0],
            look_y=look[1],
            pose=(x, y, z, yaw, pitch),
        )
        for frame, (held, look, x, y, z, yaw, pitch) in enumerate(columns)
    ]
