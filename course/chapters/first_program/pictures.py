"""Chapter 1, its picture."""

from __future__ import annotations

from course.svg import COLOURS, Svg


def same_program() -> str:
    picture = Svg(
        640, 220, "One program, started three times; each copy has a number, and all meet at one address"
    )
    picture.box(230, 16, 180, 44, text="hello_distributed.py")
    for rank in range(3):
        x = 40 + 200 * rank
        picture.arrow(320, 60, x + 80, 96)
        picture.box(x, 98, 160, 48, fill=COLOURS[rank], text=f"rank {rank} of 3")
        picture.arrow(x + 80, 146, 320, 178)
    picture.box(180, 180, 280, 32, text="meet at 127.0.0.1, one port for all")
    return str(picture)


PICTURES = {"same_program": same_program}
