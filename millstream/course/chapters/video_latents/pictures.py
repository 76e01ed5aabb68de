"""Video chapter 1, its picture."""

from __future__ import annotations

from millstream.course.svg import COLOURS, Svg


def strides() -> str:
    picture = Svg(640, 210, "Thirteen pictures become four latent frames: the first is one picture, each later one four")
    x = 20.0
    for latent, pictures in enumerate((1, 4, 4, 4)):
        begin = x
        for _ in range(pictures):
            picture.box(x, 30, 38, 38, fill=COLOURS[latent % 2])
            x += 44
        picture.box(begin, 120, x - begin - 6, 38, fill=COLOURS[latent % 2], text=str(latent))
        picture.arrow((begin + x - 6) / 2, 70, (begin + x - 6) / 2, 118)
        x += 6
    picture.text(20, 20, "pictures, 256 x 256 x 3")
    picture.text(20, 184, "latent frames, 32 x 32 x 8; a latent frame sees the two before it, never a later one")
    return str(picture)


PICTURES = {"strides": strides}
