"""Drawing lots: which scenes there are, as tensors with one row per scene.

Lots come from Philox keyed by the seed and counted by the scene's index, so scene 17 of a seed is the same
scene however many are drawn. Lots are drawn on the CPU and moved, so every device sees the same scenes.
Nothing here knows pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from millstream.ops.noise import philox
from millstream.train.data.vocabulary import (
    CLASSES,
    MOTIONS,
    SETTINGS,
    SIZES,
    SPEEDS,
    THINGS,
    TIMES,
    can_share,
    combinations,
    is_held_out,
    motions_of,
    things_of,
    weathers_of,
)

SECOND_SHARE = 0.35
"""Scenes that show two things."""
_LOTS = 32
"""Uniform numbers drawn for a scene; a multiple of 4."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenes:
    """One row a scene. Ids are int64, `second` is bool, the rest float32."""

    setting: Tensor
    time: Tensor
    weather: Tensor
    thing: Tensor
    colour: Tensor
    size: Tensor
    motion: Tensor
    speed: Tensor
    second: Tensor
    """True where there is a second thing; its ids are valid even where there is none. It shares the first
    one's speed."""
    thing2: Tensor
    colour2: Tensor
    size2: Tensor
    motion2: Tensor
    """The first one's motion wherever the second thing can do it."""
    direction: Tensor
    """1: the camera pans to the right; -1: to the left."""
    pan: Tensor
    """The camera's own speed, picture heights a second."""
    horizon: Tensor
    """0 high, 1 low."""
    sun: Tensor
    """Where the sun, moon or planet stands, 0 to 1."""
    hue: Tensor
    """How far colours lean from their palette, -1 to 1."""
    cover: Tensor
    """How cloudy a clear sky is, 0 to 1."""
    side: Tensor
    """Where the first thing stands, -1 left to 1 right; the second stands opposite."""
    level: Tensor
    """How high it stands, 0 to 1."""
    scale: Tensor
    """Fine differences in size, -1 to 1."""
    phase: Tensor
    """Where the first thing is in its motion, in turns."""
    phase2: Tensor
    grain: Tensor
    """Shifts every texture and every layer, so that no two scenes have the same hills; 0 to 60."""

    def __len__(self) -> int:
        return len(self.setting)

    def __getitem__(self, rows: slice | Tensor) -> Scenes:
        return Scenes(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def to(self, device: torch.device | str) -> Scenes:
        return Scenes(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def sample_scenes(
    count: int,
    *,
    seed: int,
    held_out: bool | None = False,
    start: int = 0,
    device: torch.device | str = "cpu",
    settings: tuple[str, ...] = SETTINGS,
) -> Scenes:
    """Scenes `start` to `start + count` of a seed.

    `held_out`: False never shows a held-out combination, in either thing; True shows one in the first thing
    of every scene; None does not care. `settings`: those that scenes are drawn from.
    """
    lots = _lots(count, start, seed)
    picked = _pick(_table(held_out, settings), lots[0])
    setting, time, weather, thing, colour = picked.unbind(1)
    thing2, colour2 = _pick_second(setting, time, weather, lots[1])
    motion = _allowed_motion(thing, lots[2])
    motion2 = torch.where(_ways()[thing2, motion], motion, _allowed_motion(thing2, lots[3]))
    share = _sharing()[thing, thing2] & ((thing != thing2) | (colour != colour2))
    scenes = Scenes(
        setting=setting,
        time=time,
        weather=weather,
        thing=thing,
        colour=colour,
        size=_choose(lots[4], len(SIZES)),
        motion=motion,
        speed=_choose(lots[5], len(SPEEDS)),
        second=(lots[6] < SECOND_SHARE) & share,
        thing2=thing2,
        colour2=colour2,
        size2=_choose(lots[7], len(SIZES)),
        motion2=motion2,
        direction=torch.where(lots[8] < 0.5, -1.0, 1.0).float(),
        pan=_between(lots[9], 0.022, 0.045),
        horizon=lots[10].float(),
        sun=lots[11].float(),
        hue=_between(lots[12], -1, 1),
        cover=lots[13].float(),
        side=_between(lots[14], -1, 1),
        level=lots[15].float(),
        scale=_between(lots[16], -1, 1),
        phase=lots[17].float(),
        phase2=lots[18].float(),
        grain=_between(lots[19], 0, 60),
    )
    return scenes.to(device)


def attributes(scenes: Scenes) -> dict[str, Tensor]:
    """The ids a classifier is asked for; of two things, those of the first."""
    names = ("setting", "time", "weather", "thing", "colour", "motion")
    return {name: getattr(scenes, name) for name in names}


def shown(scenes: Scenes) -> dict[str, Tensor]:
    """Per attribute, which classes a scene shows [B, classes]: of two things, what either of them is."""
    found = {name: one_hot(ids, len(CLASSES[name])).bool() for name, ids in attributes(scenes).items()}
    for name in ("thing", "colour", "motion"):
        second = one_hot(getattr(scenes, f"{name}2"), len(CLASSES[name])).bool()
        found[name] |= second & scenes.second[:, None]
    return found


def _lots(count: int, start: int, seed: int) -> Tensor:
    """Uniform in [0, 1), float64, [_LOTS, count]."""
    index = torch.arange(start, start + count, dtype=torch.int64).repeat(_LOTS // 4, 1)
    block = torch.arange(_LOTS // 4, dtype=torch.int64)[:, None].expand_as(index)
    zero = torch.zeros_like(index)
    words = philox(
        (index, block.contiguous(), zero, zero.clone()), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    )
    return torch.stack(words, dim=1).flatten(0, 1).double() * 2.0**-32


def _choose(lot: Tensor, count: int) -> Tensor:
    return (lot * count).long().clamp_(max=count - 1)


def _between(lot: Tensor, low: float, high: float) -> Tensor:
    return (low + (high - low) * lot).float()


@cache
def _table(held_out: bool | None, settings: tuple[str, ...] = SETTINGS) -> tuple[Tensor, Tensor]:
    """Combinations [K, 5] and the running sum of their chances [K]: settings, then times, then weathers are
    even."""
    rows = [
        row
        for row in combinations()
        if SETTINGS[row.setting] in settings and (held_out is None or is_held_out(row) == held_out)
    ]
    chances = []
    for row in rows:
        setting = SETTINGS[row.setting]
        time = TIMES[row.time]
        chances.append(1 / (len(weathers_of(setting, time)) * len(things_of(setting, time))))
    return torch.tensor(rows), torch.tensor(chances, dtype=torch.float64).cumsum(0)


def _pick(table: tuple[Tensor, Tensor], lot: Tensor) -> Tensor:
    rows, sums = table
    return rows[torch.searchsorted(sums, lot * sums[-1], right=True).clamp_(max=len(rows) - 1)]


def _pick_second(setting: Tensor, time: Tensor, weather: Tensor, lot: Tensor) -> tuple[Tensor, Tensor]:
    """Out of the training combinations of the same setting, time and weather, whatever the first thing is."""
    rows, _ = _table(False)
    key = (rows[:, 0] * 100 + rows[:, 1]) * 100 + rows[:, 2]
    wanted = (setting * 100 + time) * 100 + weather
    first = torch.searchsorted(key, wanted)
    last = torch.searchsorted(key, wanted, right=True)
    found = rows[first + ((last - first) * lot).long()]
    return found[:, 3], found[:, 4]


@cache
def _ways() -> Tensor:
    """[thing, motion]: can it."""
    return torch.tensor([[motion in motions_of(thing) for motion in MOTIONS] for thing in THINGS])


@cache
def _sharing() -> Tensor:
    return torch.tensor([[can_share(first, second) for second in THINGS] for first in THINGS])


def _allowed_motion(thing: Tensor, lot: Tensor) -> Tensor:
    sums = _ways()[thing].double().cumsum(1)
    return (sums <= (lot * sums[:, -1])[:, None]).sum(1)
