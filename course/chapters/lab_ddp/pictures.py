"""Lab 02, its picture."""

from __future__ import annotations

from course.svg import COLOURS, Svg


def buckets() -> str:
    picture = Svg(
        640, 200, "Gradients of three layers, last first, in buckets that leave as soon as they are full"
    )
    for place, layer in enumerate((3, 2, 1)):
        x = 20 + 205 * place
        picture.box(x, 20, 70, 36, fill=COLOURS[0], text=f"bias {layer}")
        picture.box(x + 74, 20, 110, 36, fill=COLOURS[0], text=f"weight {layer}")
        picture.arrow(x + 92, 56, x + 92, 84)
        picture.box(x, 86, 184, 36, fill=COLOURS[1], text=f"bucket {place}: sum begins")
    picture.text(320, 150, "the backward pass goes this way, and does not wait for the sums", middle=True)
    picture.arrow(180, 172, 460, 172)
    return str(picture)


PICTURES = {"buckets": buckets}
