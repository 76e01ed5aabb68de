"""Positions of things and the camera at any moment: a pure function of the scene and the time.

The camera never stops panning. A drifting thing is followed, loosely, at its own speed; rising and falling
things come in a procession, the next one in sight before the last has left; the others stay around their
place. So at every moment at least one thing is in the picture. Nothing here knows pixels; lengths are in
picture heights, as in `fields`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.train.data.fields import chance
from millstream.train.data.lands import TRACK
from millstream.train.data.light import constant
from millstream.train.data.scene import Scenes
from millstream.train.data.vocabulary import MOTIONS, RUNNERS, SETTINGS, SWIMMERS, THINGS

DRIFTING, RISING, FALLING, CIRCLING, BOBBING = range(len(MOTIONS))
SEA = SETTINGS.index("sea")
SPACE = SETTINGS.index("space")
TRAIN = THINGS.index("train")
COMET = THINGS.index("comet")

FOLLOW = (0.055, 0.15)
"""How much faster the camera pans behind a drifting thing, slow and fast, picture heights a second."""
CLIMB = (0.07, 0.18)
"""How fast things rise and fall."""
HALF_SIZES = (0.12, 0.18)
"""Half the height of a small and of a large thing."""
LARGEST_IN_PROCESSION = 0.155
"""Half its height: so that one is always in full view and never more than two in sight."""
STOUT = {"train": 1.3, "whale": 1.22, "comet": 1.1, "boat": 1.1, "jellyfish": 1.05, "bird": 1.12, "fish": 1.0}
"""Things that are drawn larger than the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThingPositions:
    """Positions of one thing of every scene at T moments; all [B, T]."""

    x: Tensor
    y: Tensor
    half: Tensor
    """Half its size."""
    tilt: Tensor
    """Radians; positive is nose down."""
    there: Tensor
    """True where the thing is drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Actor:
    """One of the two things of every scene; all [B, 1]."""

    thing: Tensor
    motion: Tensor
    speed: Tensor
    phase: Tensor
    x: Tensor
    y: Tensor
    half: Tensor
    room: Tensor
    """How far it may stray sideways."""
    there: Tensor
    row: int


def camera_travel(scenes: Scenes, time_T: Tensor) -> Tensor:
    """How far the camera has panned, [B, T]."""
    follow = _by_speed(FOLLOW, scenes.speed) * (scenes.motion == DRIFTING)
    return (scenes.direction * (scenes.pan + follow))[:, None] * time_T


def places(
    scenes: Scenes, time_T: Tensor, aspect: float = 1.0
) -> tuple[ThingPositions, ThingPositions, ThingPositions, ThingPositions]:
    """The second thing and the one that follows it, then the first thing and the one that follows it."""
    first = _first(scenes, aspect)
    second = _second(scenes, aspect)
    return (*_both(second, scenes, time_T), *_both(first, scenes, time_T))


def _first(scenes: Scenes, aspect: float) -> _Actor:
    pair = scenes.second
    away = torch.where(pair, 0.19 + 0.02 * scenes.side, 0.09 * scenes.side.abs()) * torch.where(
        scenes.side < 0, -1.0, 1.0
    )
    half = _half(scenes.thing, scenes.motion, scenes.size, scenes.scale) * torch.where(pair, 0.9, 1.0)
    return _Actor(
        thing=scenes.thing[:, None],
        motion=scenes.motion[:, None],
        speed=scenes.speed[:, None],
        phase=scenes.phase[:, None],
        x=((0.5 + away) * aspect)[:, None],
        y=_height(scenes, scenes.thing, scenes.level, half)[:, None],
        half=half[:, None],
        room=torch.where(pair, 0.09, 0.2)[:, None] * aspect,
        there=torch.ones_like(pair)[:, None],
        row=201,
    )


def _second(scenes: Scenes, aspect: float) -> _Actor:
    away = torch.where(scenes.side < 0, 0.19, -0.19) - 0.02 * scenes.side
    half = _half(scenes.thing2, scenes.motion2, scenes.size2, -scenes.scale) * 0.82
    return _Actor(
        thing=scenes.thing2[:, None],
        motion=scenes.motion2[:, None],
        speed=scenes.speed[:, None],
        phase=scenes.phase2[:, None],
        x=((0.5 + away) * aspect)[:, None],
        y=_height(scenes, scenes.thing2, 1 - scenes.level, half)[:, None],
        half=half[:, None],
        room=torch.full_like(half, 0.09)[:, None] * aspect,
        there=scenes.second[:, None],
        row=202,
    )


def _half(thing: Tensor, motion: Tensor, size: Tensor, scale: Tensor) -> Tensor:
    stout = constant(tuple(STOUT.get(name, 1.0) for name in THINGS), thing.device)
    half = _by_speed(HALF_SIZES, size) * stout[thing] * (1 + 0.08 * scale)
    travels = (motion == RISING) | (motion == FALLING)
    return torch.where(travels, half.clamp(max=LARGEST_IN_PROCESSION), half)


def _height(scenes: Scenes, thing: Tensor, level: Tensor, half: Tensor) -> Tensor:
    """Fliers keep to the sky, swimmers to the water, runners to the track; space is open."""
    swims = _is_one_of(SWIMMERS, thing)
    runs = _is_one_of(RUNNERS, thing)
    y = torch.where(swims & (scenes.setting == SEA), 0.70 + 0.07 * level, 0.30 + 0.14 * level)
    y = torch.where(scenes.setting == SPACE, 0.38 + 0.22 * level, y)
    return torch.where(runs & (scenes.setting != SPACE), TRACK - 0.42 * half, y)


def _both(actor: _Actor, scenes: Scenes, time_T: Tensor) -> tuple[ThingPositions, ThingPositions]:
    travels = (actor.motion == RISING) | (actor.motion == FALLING)
    x, y, tilt = _around(actor, scenes, time_T)
    here, next_one = _procession(actor, scenes, time_T)
    half = actor.half.expand_as(x)
    there = actor.there.expand_as(x)
    leader = ThingPositions(
        x=torch.where(travels, here[0], x),
        y=torch.where(travels, here[1], y),
        tilt=torch.where(travels, here[2], tilt),
        half=half,
        there=there,
    )
    follower = ThingPositions(
        x=next_one[0], y=next_one[1], tilt=next_one[2], half=half, there=there & travels
    )
    return follower, leader


def _around(actor: _Actor, scenes: Scenes, time_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Drifting, circling and bobbing: x, y and tilt."""
    angle = 2 * math.pi * actor.phase
    drifts = actor.motion == DRIFTING
    circles = actor.motion == CIRCLING
    turn = _by_speed((0.9, 1.9), actor.speed) * time_T + angle  # circling and bobbing
    stray = _by_speed((0.16, 0.34), actor.speed) * time_T + angle  # slower than the camera that follows
    calm = torch.where(_is_one_of(RUNNERS, actor.thing), 0.0, 1.0)
    low = _is_one_of(SWIMMERS, actor.thing) & (scenes.setting == SEA)[:, None]
    x = torch.where(
        drifts,
        actor.room * stray.sin(),
        torch.where(circles, actor.room * 0.75 * turn.cos(), 0.012 * (0.6 * turn).sin()),
    )
    tall = torch.where(low, 0.045, 0.105)
    bob = torch.where(low, 0.022, 0.055)
    gentle = 0.012 * torch.sin(1.3 * time_T + angle)
    y = torch.where(drifts, gentle * calm, torch.where(circles, tall * turn.sin(), bob * turn.sin()))
    tilt = torch.where(
        drifts,
        0.04 * (1.1 * time_T + angle).cos() * calm,
        torch.where(circles, 0.16 * turn.cos(), 0.17 * turn.cos()),
    )
    return actor.x + x, actor.y + y, tilt


def _procession(actor: _Actor, scenes: Scenes, time_T: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    """Rising and falling: the one in full view, and the one that is leaving or about to come."""
    gap = 0.99 - 2 * actor.half
    way = _by_speed(CLIMB, actor.speed) * time_T / gap + actor.phase
    index = way.floor()
    share = way - way.floor()
    other = torch.where(share < 0.5, 1.0, -1.0)
    return _along(actor, scenes, time_T, index, share), _along(
        actor, scenes, time_T, index - other, share + other
    )


def _along(
    actor: _Actor, scenes: Scenes, time_T: Tensor, index: Tensor, share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One of a procession: each has a way of its own, a little to the left or right."""
    lot = chance(index, actor.row)[0]
    run = actor.half + share * (0.99 - 2 * actor.half)
    y = torch.where(actor.motion == RISING, 0.995 - run, 0.005 + run)
    sway = torch.sin(0.8 * time_T + 6.283 * lot)
    comet = actor.thing == COMET
    slant = torch.where(comet, 0.3 * (share - 0.5), 0.0) * scenes.direction[:, None]
    x = actor.x + actor.room * 0.8 * (2 * lot - 1) * torch.where(comet, 0.3, 1.0) + 0.014 * sway + slant
    steep = torch.where(actor.motion == RISING, -1.0, 1.0)
    nose = torch.where(comet, 0.9, torch.where(actor.thing == THINGS.index("plane"), 0.38, 0.0))
    return x, y, steep * nose + 0.07 * sway


def _by_speed(values: tuple[float, float], index: Tensor) -> Tensor:
    return torch.where(index == 0, values[0], values[1])


def _is_one_of(names: frozenset[str], thing: Tensor) -> Tensor:
    return constant(tuple(float(name in names) for name in THINGS), thing.device)[thing] > 0
