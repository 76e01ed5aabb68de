"""Video chapter 1, its picture."""

from __future__ import annotations

from course.svg import COLOURS, Svg
from millstream.core.config import SPATIAL_STRIDE, TEMPORAL_STRIDE
from millstream.core.presets import find_model

BROOK = find_model("brook")


def strides() -> str:
    picture = Svg(
        640, 210, "Thirteen pictures become four latent frames: the first is one picture, each later one four"
    )
    x = 20.0
    side = BROOK.stream.width
    small = side // SPATIAL_STRIDE
    for latent, pictures in enumerate((1, *[TEMPORAL_STRIDE] * 3)):
        begin = x
        for _ in range(pictures):
            picture.box(x, 30, 38, 38, fill=COLOURS[latent % 2])
            x += 44
        picture.box(begin, 120, x - begin - 6, 38, fill=COLOURS[latent % 2], text=str(latent))
        picture.arrow((begin + x - 6) / 2, 70, (begin + x - 6) / 2, 118)
        x += 6
    picture.text(20, 20, f"pictures, {side} x {side} x 3")
    picture.text(
        20,
        184,
        f"latent frames, {small} x {small} x {BROOK.dit.channels}; a latent frame sees the two before it, "
        "never a later one",
    )
    return str(picture)


PICTURES = {"strides": strides}
