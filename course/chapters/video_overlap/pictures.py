"""Video chapter 4, its pictures: timelines from the exercise's own formula, and the way of a chunk."""

from __future__ import annotations

from course.chapters.video_overlap.solution import timeline
from course.svg import COLOURS, Svg

FRONT = 80.0
MESH = 200.0
SCALE = 0.48


def overlap() -> str:
    picture = Svg(640, 290, "Three chunks: one at a time, and with two under way")
    for row, (name, in_flight) in enumerate((("one at a time", 1), ("planned ahead", 2))):
        y = 16 + 132 * row
        picture.text(10, y + 14, name)
        for line, who in enumerate(("mesh", "front")):
            picture.text(10, y + 48 + 44 * line, who)
        begun = 0.0
        for chunk, shown in enumerate(timeline(FRONT, MESH, 3, in_flight)):
            mesh_end = shown - FRONT if shown - FRONT - MESH >= begun else begun + MESH
            picture.box(
                80 + SCALE * (mesh_end - MESH),
                y + 26,
                SCALE * MESH - 3,
                34,
                fill=COLOURS[0],
                text=f"latents {chunk}",
            )
            picture.box(
                80 + SCALE * (shown - FRONT), y + 70, SCALE * FRONT - 3, 34, fill=COLOURS[1], text=str(chunk)
            )
            begun = mesh_end
    return str(picture)


def way() -> str:
    picture = Svg(640, 130, "A control becomes an envelope, the envelope latents, the latents pictures")
    stops = (
        ("controls", 1),
        ("timeline", 5),
        ("envelope", 3),
        ("generator", 0),
        ("decoder", 1),
        ("pictures", 2),
    )
    for place, (name, colour) in enumerate(stops):
        x = 10 + 106 * place
        picture.box(x, 40, 92, 40, fill=COLOURS[colour], text=name)
        if place:
            picture.arrow(x - 14, 60, x - 1, 60)
    picture.text(10, 110, "front: session and decoder")
    picture.text(374, 28, "mesh", middle=True)
    return str(picture)


PICTURES = {"overlap": overlap, "way": way}
