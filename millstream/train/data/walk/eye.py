"""Frames on the device, ready to be painted: where each eye is, and the light of its scene.

Colours are [N, 3, 1], so that they go with samples [N, 3, P]. Shapes: B scenes, T moments, N frames.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from millstream.train.data.fields import FieldView
from millstream.train.data.light import AURORA, DAWN, DUSK, NIGHT, constant, light_of
from millstream.train.data.scene import Scenes
from millstream.train.data.vocabulary import SETTINGS, WEATHERS
from millstream.train.data.walk.camera import rotations
from millstream.train.data.walk.noise import TILE, Places
from millstream.train.data.walk.scene import Walks
from millstream.train.data.walk.walker import Poses

SIGHT = {"clear": 1300.0, "rain": 330.0, "snow": 240.0, "fog": 48.0, "aurora": 1300.0}
"""Metres at which a colour has faded to a third, by weather."""
FOG = WEATHERS.index("fog")
SNOW = WEATHERS.index("snow")
RAIN = WEATHERS.index("rain")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mood:
    """Light of N scenes or frames: colours [N, 3, 1], numbers [N, 1]."""

    top: Tensor
    middle: Tensor
    low: Tensor
    glow: Tensor
    ambient: Tensor
    cloud: Tensor
    shade: Tensor
    haze: Tensor
    """Colour that distance fades into, and of the sky at the horizon."""
    grey: Tensor
    dull: Tensor
    """0 under an open sky, up to 1 under a closed one."""
    sun: Tensor
    """Direction of the sun or moon [N, 3]: east, up, south."""
    strength: Tensor
    """Colour of direct light."""
    sight: Tensor
    """Metres."""
    cover: Tensor
    hue: Tensor
    setting: Tensor
    """[N] int64; so are time and weather."""
    time: Tensor
    weather: Tensor

    def rows(self, rows: Tensor) -> Mood:
        return Mood(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @property
    def fog(self) -> Tensor:
        """[N, 1]: 1 in fog."""
        return (self.weather == FOG).float()[:, None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Eye:
    """N frames."""

    row: Tensor
    """[N]: scene of a frame."""
    x: Tensor
    """[N] float32, metres from the tile; y above the sea."""
    y: Tensor
    z: Tensor
    tile: Tensor
    """[N, 2] int32"""
    seed: Tensor
    rotation: Tensor
    """Camera to world [N, 3, 3]."""
    time: Tensor
    """[N] seconds."""
    mood: Mood

    def __len__(self) -> int:
        return len(self.row)

    def places(self, x: Tensor, z: Tensor) -> Places:
        return Places(x, z, self.tile, self.seed)

    def seen(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Camera coordinates (right, down, forwards) of places [N, ...], metres from the tile."""
        shape = (-1, *(1,) * (x.dim() - 1))
        u = x - self.x.view(shape)
        v = y - self.y.view(shape)
        w = z - self.z.view(shape)
        turned = [
            u * self.rotation[:, 0, i].view(shape)
            + v * self.rotation[:, 1, i].view(shape)
            + w * self.rotation[:, 2, i].view(shape)
            for i in range(3)
        ]
        return turned[0], turned[1], turned[2]


def mood_of(walks: Walks, device: torch.device) -> Mood:
    """Light of every scene."""
    scenes = walks.scenes.to(device)
    values = torch.stack((scenes.time.float(), scenes.weather.float(), scenes.hue), dim=1)
    view = FieldView(values=values, columns={"time": 0, "weather": 1, "hue": 2}, height=1, width=1)
    light = light_of(view)
    colours = {
        name: getattr(light, name)[..., 0].expand(len(walks), -1, -1)
        for name in ("top", "middle", "low", "glow", "ambient", "cloud", "shade", "haze", "grey")
    }
    dull = light.dull[:, 0, 0]
    night = scenes.time == NIGHT
    low = (scenes.time == DAWN) | (scenes.time == DUSK)
    strength = torch.where(night, 0.30, torch.where(low, 0.62, 0.55))[:, None] * (1 - 0.93 * dull)
    strength = strength * torch.where((scenes.weather == AURORA) & ~night, 0.4, 1.0)[:, None]
    sight = constant(tuple(SIGHT[name] for name in WEATHERS), device)[scenes.weather][:, None]
    fog = (scenes.weather == FOG)[:, None, None]
    veil = torch.lerp(colours["haze"], colours["grey"] * 1.12, 0.8).clamp(max=1)
    colours["haze"] = torch.where(
        fog, veil, torch.lerp(colours["haze"], colours["grey"], dull[:, None] * 0.4)
    )
    return Mood(
        **colours,
        dull=dull,
        sun=_sun(scenes, walks.yaw.to(device).float()),
        strength=strength,
        sight=sight,
        cover=scenes.cover[:, None],
        hue=scenes.hue[:, None],
        setting=scenes.setting,
        time=scenes.time,
        weather=scenes.weather,
    )


def _sun(scenes: Scenes, yaw: Tensor) -> Tensor:
    """Dawn's sun stands low, to the left of the first view; dusk's to the right; day's and the moon high."""
    lot = scenes.sun - 0.5
    time = scenes.time
    off = torch.where(time == DAWN, 24 * lot - 17, torch.where(time == DUSK, 24 * lot + 17, 50 * lot))
    lift = torch.where(
        time == DAWN, 8.0, torch.where(time == DUSK, 6.5, torch.where(time == NIGHT, 17.0, 27.0))
    )
    angle = (yaw + off).deg2rad()
    rise = lift.deg2rad()
    return torch.stack((angle.sin() * rise.cos(), rise.sin(), -angle.cos() * rise.cos()), dim=1)


def eyes_of(walks: Walks, poses: Poses, mood: Mood, time_T: Tensor) -> Eye:
    """All frames of all walks, scene by scene."""
    device = mood.dull.device
    count, frames = poses.x.shape
    row = torch.arange(count).repeat_interleave(frames)
    x = poses.x.flatten()
    z = poses.z.flatten()
    tile = torch.stack((x, z), dim=1).div(TILE).floor()
    return Eye(
        row=row.to(device),
        x=(x - tile[:, 0] * TILE).float().to(device),
        y=poses.y.flatten().float().to(device),
        z=(z - tile[:, 1] * TILE).float().to(device),
        tile=tile.to(torch.int32).to(device),
        seed=walks.world[row].to(device),
        rotation=rotations(poses.yaw.flatten(), poses.pitch.flatten()).float().to(device),
        time=time_T.repeat(count).float().to(device),
        mood=mood.rows(row.to(device)),
    )


def is_setting(mood: Mood, name: str) -> Tensor:
    """[N, 1, 1] float"""
    return (mood.setting == SETTINGS.index(name)).float()[:, None, None]
