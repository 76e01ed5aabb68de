"""Sizes that clips of one dataset may have, and which of them suits a video."""

from __future__ import annotations

import math
from collections.abc import Sequence

from millstream.core.config import SPATIAL_STRIDE, check_size, parse_size, size_unit
from millstream.core.errors import ConfigError

Size = tuple[int, int]
"""Height and width, in pixels."""
AUTO = "auto"
SHAPES = (1.0, 3 / 4, 4 / 3, 9 / 16, 16 / 9)
"""Height by width, of what people film."""
ALIKE = math.log(1.1)
"""Two shapes nearer than that are one."""


def parse_sizes(text: str, own: Size, stride: int = SPATIAL_STRIDE) -> tuple[Size, ...]:
    """`480x832,640x640`, or `auto` for the shapes that videos have, each about as large as the model's own
    size."""
    unit = size_unit(stride)
    sizes = _about(own, unit) if text == AUTO else tuple(map(parse_size, text.split(",")))
    for size in sizes:
        check_size(*size, stride)
    if len(set(sizes)) < len(sizes):
        raise ConfigError(f"--sizes names a size twice: {text}")
    return sizes


def nearest(sizes: Sequence[Size], to: Size) -> Size:
    """Whose shape is most like it: least of a picture is cut off."""
    return min(sizes, key=lambda size: abs(_shape(size) - _shape(to)))


def _about(own: Size, unit: int) -> tuple[Size, ...]:
    found = [own]
    for shape in (own[1] / own[0], *SHAPES):
        height = math.sqrt(own[0] * own[1] * shape)
        size = unit * max(1, round(height / unit)), unit * max(1, round(height / shape / unit))
        if all(abs(_shape(size) - _shape(other)) > ALIKE for other in found):
            found.append(size)
    return tuple(found)


def _shape(size: Size) -> float:
    return math.log(size[0] / size[1])
