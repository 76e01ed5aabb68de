"""Drawing things on pictures: each on the patch of its frame that it can reach, all of a kind in one batch.

Shapes: B clips, T moments, N = B * T frames, M things of one kind, P side of a patch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.train.data.brush import Brush
from millstream.train.data.fields import FieldView, turn
from millstream.train.data.light import constant, light_of
from millstream.train.data.motion import ThingPositions, places
from millstream.train.data.scene import Scenes
from millstream.train.data.things import DRAW, PAINTS
from millstream.train.data.vocabulary import COLOURS, THINGS

TINT = 0.42
"""How much of the light's colour things take on: less than the land, so that red stays red at night."""
PATCH = 0.5
"""Side of a patch in picture heights; no thing is larger."""
PIECE_PIXELS = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Pixels of patches painted at once, by kind of device."""


def draw_things(canvas: Tensor, scenes: Scenes, view: FieldView, time_T: Tensor) -> None:
    """Draws all things into `canvas` [N, 3, H, W]."""
    slots = places(scenes, time_T, view.aspect)
    shown = torch.stack([slot.there[:, 0] for slot in slots])
    ids = torch.stack((scenes.thing2, scenes.thing2, scenes.thing, scenes.thing))
    columns_SNC = _columns(slots, scenes, view)
    for kind, slot, rows in _instances(torch.where(shown, ids, -1), len(time_T)):
        count = max(1, PIECE_PIXELS.get(canvas.device.type, 1 << 18) // _side(canvas) ** 2)
        for i in range(0, len(rows), count):
            part = slice(i, i + count)
            where = _to(canvas, slot[part]), _to(canvas, rows[part])
            _stamp(canvas, where[1], columns_SNC[where], slot[part], THINGS[kind])


def _instances(kinds_SB: Tensor, moments: int) -> list[tuple[int, list[int], list[int]]]:
    """By kind of thing: which slot and which frame each one is in, slot by slot. The one wait for the
    device."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for slot, kinds in enumerate(kinds_SB.tolist()):
        for clip, kind in enumerate(kinds):
            slots, rows = found.setdefault(kind, ([], []))
            slots.extend([slot] * moments)
            rows.extend(range(clip * moments, (clip + 1) * moments))
    return [(kind, *found[kind]) for kind in sorted(found) if kind >= 0]


def _to(canvas: Tensor, numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, device=canvas.device)


def _side(canvas: Tensor) -> int:
    return min(canvas.shape[2], canvas.shape[3], round(canvas.shape[2] * PATCH))


def _columns(slots: tuple[ThingPositions, ...], scenes: Scenes, view: FieldView) -> Tensor:
    """For every slot and frame: x, y, half, tilt; paint; direction, time, light. [S, N, 12]"""
    where = torch.stack([torch.stack((p.x, p.y, p.half, p.tilt), dim=-1).flatten(0, 1) for p in slots])
    palette = constant(tuple(part for name in COLOURS for part in PAINTS[name]), view.values.device).view(
        -1, 3
    )
    colours = torch.stack((scenes.colour2, scenes.colour2, scenes.colour, scenes.colour))
    paint = palette[colours].repeat_interleave(len(view) // len(scenes), dim=1)
    ambient = 1 + TINT * (light_of(view).ambient - 1)
    common = torch.cat((view.get("direction"), view.get("t"), ambient), dim=1).flatten(1)
    return torch.cat((where, paint, common.expand(len(slots), -1, -1)), dim=2)


def _stamp(canvas: Tensor, rows: Tensor, columns: Tensor, slots: list[int], name: str) -> None:
    """Draws M things of one kind, then lays them on their frames, slot by slot: one frame may have several.

    A patch always lies within its frame and is larger than any thing, so what it misses is out of the
    picture.
    """
    side = _side(canvas)
    height = canvas.shape[2]
    x, y, half, tilt = columns[:, :4, None, None, None].unbind(1)
    paint, direction, time, ambient = torch.split(columns[:, 4:, None, None], [3, 1, 1, 3], dim=1)
    steps = torch.arange(side, device=canvas.device)
    down = (y * height - side / 2).round().clamp(0, height - side).long() + steps[:, None]  # [M, 1, P, 1]
    across = (x * height - side / 2).round().clamp(0, canvas.shape[3] - side).long() + steps  # [M, 1, 1, P]
    u = ((across + 0.5) / height - x) / half * direction
    v = ((down + 0.5) / height - y) / half
    u, v = turn(u, v, tilt)
    brush = Brush(u, paint=paint, ambient=ambient, pixel=1 / (height * half), time=time)
    DRAW[name](brush, u, v)
    frame = rows[:, None, None, None]
    channel = torch.arange(3, device=canvas.device)[:, None, None]
    for slot in sorted(set(slots)):
        first = slots.index(slot)
        part = slice(first, first + slots.count(slot))
        index = frame[part], channel, down[part], across[part]
        canvas[index] = (canvas[index] * (1 - brush.opacity[part]) + brush.layer[part]).to(canvas.dtype)
