"""Light: the colours that a time of day and a weather give to sky, ground, clouds and haze.

A palette is a plain table; `Light` is its rows for a batch of frames. Colours are [N, 3, 1, 1] in 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

from millstream.train.data.fields import FieldView
from millstream.train.data.vocabulary import TIMES, WEATHERS

Colour = tuple[float, float, float]
DAWN, DAY, DUSK, NIGHT = range(len(TIMES))
AURORA = WEATHERS.index("aurora")

_NAMES = ("top", "middle", "low", "glow", "ambient", "cloud", "shade", "nebula", "ember")
# One row a time of day: dawn, day, dusk, night.
_PALETTES: tuple[tuple[Colour, ...], ...] = (
    (
        (0.44, 0.56, 0.82), (0.86, 0.73, 0.84), (1.00, 0.86, 0.70), (1.00, 0.88, 0.66), (0.92, 0.80, 0.82),
        (1.00, 0.88, 0.84), (0.72, 0.62, 0.76), (0.62, 0.26, 0.48), (1.00, 0.66, 0.62),
    ),
    (
        (0.20, 0.48, 0.86), (0.46, 0.71, 0.95), (0.80, 0.91, 0.98), (1.00, 0.97, 0.82), (1.00, 1.00, 0.97),
        (1.00, 1.00, 1.00), (0.72, 0.80, 0.90), (0.14, 0.34, 0.66), (0.44, 0.80, 0.98),
    ),
    (
        (0.23, 0.16, 0.42), (0.72, 0.27, 0.42), (1.00, 0.56, 0.24), (1.00, 0.66, 0.30), (0.74, 0.50, 0.50),
        (1.00, 0.62, 0.44), (0.46, 0.22, 0.42), (0.48, 0.15, 0.14), (1.00, 0.55, 0.20),
    ),
    (
        (0.02, 0.04, 0.14), (0.06, 0.10, 0.27), (0.15, 0.22, 0.43), (0.86, 0.91, 1.00), (0.35, 0.42, 0.63),
        (0.26, 0.32, 0.48), (0.09, 0.12, 0.24), (0.07, 0.10, 0.26), (0.26, 0.36, 0.66),
    ),
)  # fmt: skip
_GREY: tuple[Colour, ...] = ((0.72, 0.68, 0.71), (0.62, 0.67, 0.72), (0.48, 0.38, 0.42), (0.14, 0.17, 0.25))
"""Grey of each time of day under a closed sky."""
_DULL = {"clear": 0.0, "rain": 0.78, "snow": 0.72, "fog": 0.4, "aurora": 0.0}
"""Share by which each weather pulls the sky towards grey."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Light:
    """Colours of N frames."""

    top: Tensor
    middle: Tensor
    low: Tensor
    glow: Tensor
    ambient: Tensor
    """Colour of a white wall."""
    cloud: Tensor
    shade: Tensor
    """The dark side of a cloud."""
    nebula: Tensor
    ember: Tensor
    """The bright part of a nebula."""
    haze: Tensor
    """Colour that distance fades into."""
    grey: Tensor
    dull: Tensor
    """[N, 1, 1, 1]"""

    def __getitem__(self, part: slice) -> Light:
        return Light(**{field.name: getattr(self, field.name)[part] for field in fields(self)})


@lru_cache(maxsize=8)
def _tables(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.tensor(_PALETTES, device=device),
        torch.tensor(_GREY, device=device),
        torch.tensor([_DULL[name] for name in WEATHERS], device=device),
    )


def light_of(view: FieldView) -> Light:
    palettes, greys, dulls = _tables(view.values.device)
    time = view.get("time").long().flatten()
    weather = view.get("weather").long().flatten()
    # An aurora drowns in a bright sky, so dusk is half night then.
    late = (time == DUSK) & (weather == AURORA)
    rows = torch.lerp(
        palettes[time], palettes[NIGHT], torch.where(late, 0.55, 0.0)[:, None, None]
    )  # [N, names, 3]
    lean = torch.stack((view.get("hue"), -0.3 * view.get("hue"), -view.get("hue")), dim=-1).reshape(-1, 1, 3)
    rows = (rows * (1 + 0.05 * lean)).clamp(max=1)
    grey = greys[time][:, :, None, None]
    dull = dulls[weather][:, None, None, None]
    colours = {name: rows[:, i, :, None, None] for i, name in enumerate(_NAMES)}
    for name, share in (("top", 0.95), ("middle", 1.0), ("low", 0.85), ("cloud", 0.5), ("shade", 0.5)):
        colours[name] = torch.lerp(colours[name], grey, dull * share)
    haze = 0.65 * colours["low"] + 0.35 * colours["middle"]
    return Light(**colours, haze=haze, grey=grey, dull=dull)


def colour(*rgb: float, like: Tensor) -> Tensor:
    """[1, 3, 1, 1] on the device of `like`."""
    return constant(rgb, like.device).view(1, 3, 1, 1)


@lru_cache(maxsize=512)
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A few numbers, sent to a device once: sending them again would make the host wait for it."""
    return torch.tensor(values, dtype=torch.float32, device=device)


def lit(paint: Tensor, light: Light) -> Tensor:
    """A colour of the land in this light: shadows take on the sky's."""
    return torch.lerp(paint * light.ambient, light.middle, 0.15)
