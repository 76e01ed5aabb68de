"""Chapter 5, its pictures."""

from __future__ import annotations

from course.svg import COLOURS, Svg


def copies() -> str:
    picture = Svg(640, 250, "Two copies of a model, each with half of the rows; their gradients are averaged")
    for rank in range(2):
        x = 30 + 320 * rank
        picture.box(x, 20, 260, 40, text=f"rows {4 * rank} to {4 * rank + 3}")
        picture.arrow(x + 130, 60, x + 130, 84)
        picture.box(x, 86, 260, 44, fill=COLOURS[rank], text=f"rank {rank}: the whole model")
        picture.arrow(x + 130, 130, x + 130, 154)
    picture.box(30, 156, 580, 36, fill=COLOURS[5], text="all-reduce: the mean of both gradients, for both")
    picture.text(320, 222, "every copy makes the same step, so they stay equal", middle=True)
    return str(picture)


def overlap() -> str:
    picture = Svg(640, 210, "Sums after the backward pass, and sums while it goes on")
    for y, title, begins in ((20, "after", (420, 480, 540)), (110, "overlapped", (210, 315, 420))):
        picture.text(10, y + 24, title)
        for place, layer in enumerate((3, 2, 1)):
            picture.box(105 + 105 * place, y, 101, 36, fill=COLOURS[0], text=f"layer {layer}")
            picture.box(begins[place], y + 40, 56, 32, fill=COLOURS[1], text=f"sum {layer}")
    return str(picture)


PICTURES = {"copies": copies, "overlap": overlap}
