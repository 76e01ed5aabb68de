"""Chapter 10, its pictures."""

from __future__ import annotations

from course.svg import COLOURS, Svg


def launches() -> str:
    picture = Svg(
        680, 250, "Launches one by one leave gaps; a graph is launched once; long kernels hide launches"
    )
    for y, title, launch, kernel, count in (
        (34, "short kernels", 60, 24, 8),
        (112, "a graph", 60, 24, 8),
        (190, "long kernels", 30, 66, 7),
    ):
        picture.text(14, y - 8, title)
        for number in range(1 if title == "a graph" else count):
            picture.box(110 + launch * number, y, launch - 2, 20, fill=COLOURS[0], text="")
        for number in range(count):
            gap = {"short kernels": launch, "a graph": kernel, "long kernels": kernel}[title]
            picture.box(110 + launch + gap * number, y + 24, kernel - 2, 20, fill=COLOURS[1])
    picture.text(14, 48, "processor", size=12)
    picture.text(14, 72, "device", size=12)
    return str(picture)


PICTURES = {"launches": launches}
