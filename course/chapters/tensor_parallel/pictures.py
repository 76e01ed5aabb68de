"""Chapter 6, its picture."""

from __future__ import annotations

from course.svg import COLOURS, Svg


def mlp() -> str:
    picture = Svg(640, 250, "An MLP over two ranks: up by outputs, down by inputs, one sum at the end")
    picture.box(14, 98, 90, 44, text="x, whole")
    for rank in range(2):
        y = 30 + 120 * rank
        colour = COLOURS[rank]
        picture.arrow(104, 120, 134, y + 30)
        picture.box(136, y, 110, 60, fill=colour, text="up, half")
        picture.arrow(246, y + 30, 272, y + 30)
        picture.box(274, y + 8, 80, 44, text="gelu")
        picture.arrow(354, y + 30, 380, y + 30)
        picture.box(382, y, 110, 60, fill=colour, text="down, half")
        picture.arrow(492, y + 30, 530, 120)
        picture.text(136, y + 78, f"rank {rank}")
    picture.box(532, 98, 96, 44, fill=COLOURS[5], text="sum + bias")
    return str(picture)


PICTURES = {"mlp": mlp}
