"""Scenes to pictures: backdrops by setting, then things on small patches, then weather in front.

Every frame is painted from its scene and its moment alone, so clips can be continued and split in any way.
Clips are grouped by what they show, and all frames of a group are one batch, in pieces that bound memory: the
number of kernels does not depend on how many clips there are until a piece is full.
Shapes: B clips, T moments, N = B * T frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

import torch
from torch import Tensor

from millstream.train.data.fields import FieldView, Tag
from millstream.train.data.lands import HORIZONS, LANDS, SNOW_LINES, track
from millstream.train.data.light import AURORA, DUSK, light_of
from millstream.train.data.motion import camera_travel
from millstream.train.data.scene import Scenes
from millstream.train.data.sky import aurora, sky
from millstream.train.data.space import space
from millstream.train.data.stamp import draw_things
from millstream.train.data.vocabulary import SETTINGS, THINGS, WEATHERS
from millstream.train.data.weather import VEILS, fog, white_ground

FPS = 16.0
PIECE_PIXELS = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Pixels painted at once, by kind of device: small pieces stay in a CPU's cache, large ones keep a GPU
busy."""
TRAIN = THINGS.index("train")
SNOW = WEATHERS.index("snow")
FOG = WEATHERS.index("fog")


def render(
    scenes: Scenes,
    *,
    start: int = 0,
    frames: int,
    size: tuple[int, int] = (256, 256),
    fps: float = FPS,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Frames `start` to `start + frames` of every scene: [B, T, 3, H, W] in -1 to 1."""
    assert all(side % 16 == 0 and side > 0 for side in size), f"sides must be multiples of 16, got {size}"
    with (
        torch.no_grad(),
        torch.autocast(scenes.setting.device.type, enabled=False),
    ):  # edges need whole floats
        return _paint(scenes, start, frames, size, fps, dtype)


def _paint(
    scenes: Scenes, start: int, frames: int, size: tuple[int, int], fps: float, dtype: torch.dtype
) -> Tensor:
    view, time_T = view_of(scenes, start, frames, size, fps)
    canvas = torch.empty(len(view), 3, *size, dtype=dtype, device=view.values.device)
    for rows, tags in _pieces(view, lambda tag: (tag.setting, tag.time >= DUSK, tag.weather, tag.rails)):
        canvas[rows] = backdrop(view.rows(rows, tags), SETTINGS[tags[0].setting]).to(dtype)
    draw_things(canvas, scenes, view, time_T)
    for rows, tags in _pieces(view, lambda tag: (tag.weather,)):
        veil = VEILS.get(WEATHERS[tags[0].weather])
        if veil is not None:
            part = view.rows(rows)
            canvas[rows] = veil(part, light_of(part), canvas[rows].float()).to(dtype)
    return canvas.clamp_(0, 1).mul_(2).sub_(1).view(len(scenes), frames, 3, *size)


def backdrop(view: FieldView, setting: str) -> Tensor:
    """All that lies behind the things of one setting: [N, 3, H, W]."""
    light = light_of(view)
    auroras = view.spans(lambda tag: tag.weather == AURORA)
    if setting == "space":
        image = space(view, light)
        for part in auroras:
            image[part] = aurora(view[part], image[part], torch.full_like(view[part].get("t"), 0.95))
        return image
    high, low = HORIZONS[setting]
    horizon = high + (low - high) * view.get("horizon")
    image = sky(view, light, horizon)
    for part in auroras:
        image[part] = aurora(view[part], image[part], horizon[part])
    image = LANDS[setting](view, light, horizon, image.clamp_(max=1))
    for part in view.spans(lambda tag: tag.weather == SNOW and setting in SNOW_LINES):
        image[part] = white_ground(view[part], light[part], horizon[part] + SNOW_LINES[setting], image[part])
    for part in view.spans(lambda tag: tag.rails):
        image[part] = track(view[part], light[part], image[part])
    for part in view.spans(lambda tag: tag.weather == FOG):
        image[part] = fog(view[part], light[part], image[part], low=0.66, high=0.40)
    return image


def view_of(
    scenes: Scenes, start: int, frames: int, size: tuple[int, int], fps: float
) -> tuple[FieldView, Tensor]:
    """All frames as one batch, and their moments in seconds [T]."""
    time_T = (torch.arange(start, start + frames, device=scenes.setting.device) / fps).float()
    names = [field.name for field in fields(scenes)]
    values = torch.stack([getattr(scenes, name).float() for name in names], dim=1).repeat_interleave(
        frames, dim=0
    )
    moments = torch.stack((camera_travel(scenes, time_T), time_T.expand(len(scenes), -1)), dim=-1).flatten(
        0, 1
    )
    columns = {name: i for i, name in enumerate((*names, "travel", "t"))}
    rails = (scenes.thing == TRAIN) | ((scenes.thing2 == TRAIN) & scenes.second)
    ids = torch.stack(
        (scenes.setting, scenes.time, scenes.weather, rails.long()), dim=1
    ).tolist()  # the one wait
    tags = tuple(tag for s, t, w, r in ids for tag in (Tag(s, t, w, bool(r)),) * frames)
    return FieldView(
        values=torch.cat((values, moments), 1), columns=columns, height=size[0], width=size[1], tags=tags
    ), time_T


def _pieces(
    view: FieldView, key: Callable[[Tag], tuple[int, ...]]
) -> Iterator[tuple[Tensor, tuple[Tag, ...]]]:
    """Frames whose key starts alike, neighbours by the rest of it, as many at a time as a piece holds."""
    count = max(1, PIECE_PIXELS.get(view.values.device.type, 1 << 20) // (view.height * view.width))
    groups: dict[int, list[int]] = {}
    for row in sorted(range(len(view)), key=lambda row: key(view.tags[row])):
        groups.setdefault(key(view.tags[row])[0], []).append(row)
    for rows in groups.values():
        for i in range(0, len(rows), count):
            piece = rows[i : i + count]
            yield torch.tensor(piece, device=view.values.device), tuple(view.tags[row] for row in piece)
