"""Video chapter 5, its picture."""

from __future__ import annotations

from course.svg import COLOURS, Svg


def deadline() -> str:
    picture = Svg(
        640,
        200,
        "A chunk may start once its viewer is no more than the lead behind, and must land before it runs dry",
    )
    picture.text(10, 46, "viewer plays")
    for chunk in range(3):
        picture.box(120 + 160 * chunk, 24, 156, 34, fill=COLOURS[chunk], text=f"chunk {chunk}")
    picture.line([(600, 16), (600, 150)], colour=COLOURS[1])
    picture.text(600, 170, "runs dry", middle=True)
    picture.line([(280, 70), (280, 150)], colour=COLOURS[5])
    picture.text(280, 170, "may start", middle=True)
    picture.text(10, 122, "device")
    picture.box(400, 100, 110, 34, fill=COLOURS[3], text="chunk 3")
    picture.text(455, 190, "anywhere between: earliest deadline first", middle=True)
    return str(picture)


PICTURES = {"deadline": deadline}
