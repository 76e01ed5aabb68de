"""Video chapter 3, its pictures: paths drawn by the solver, and forcing in boxes."""

from __future__ import annotations

import torch

from course.chapters.video_few_steps.two_points import ExactFlow
from course.svg import COLOURS, Svg
from millstream.core.schedule import FULL, even_steps


def paths() -> str:
    picture = Svg(
        640, 260, "Paths from noise to two pictures in 32 steps, and one step that ends between them"
    )
    for begin in (-2.0, -1.2, -0.5, -0.1, 0.1, 0.5, 1.2, 2.0):
        picture.line([_at(level, x) for level, x in _path(begin, 32)], colour=COLOURS[0])
    picture.line([_at(level, x) for level, x in _path(1.2, 1)], colour=COLOURS[1])
    picture.text(20, 20, "noise")
    picture.text(560, 20, "pictures")
    picture.text(470, 164, "one step: between", fill=COLOURS[1])
    return str(picture)


def forcing() -> str:
    picture = Svg(640, 190, "Teacher forcing learns on true pasts, self-forcing on its own")
    for row, (name, past, fill) in enumerate(
        (("teacher forcing", "true chunk", COLOURS[2]), ("self-forcing", "own chunk", COLOURS[1]))
    ):
        y = 30 + 80 * row
        picture.text(10, y + 26, name)
        for place in range(3):
            picture.box(140 + 120 * place, y, 104, 40, fill=fill, text=past)
        picture.arrow(490, y + 20, 516, y + 20)
        picture.box(518, y, 104, 40, fill=COLOURS[0], text="next")
    return str(picture)


def _path(begin: float, steps: int) -> list[tuple[float, float]]:
    model = ExactFlow()
    x = torch.full((1, 1, 1, 1, 1), begin)
    found = [(FULL, begin)]
    levels = even_steps(steps)
    for level, following in zip(levels, (*levels[1:], 0.0), strict=True):
        x = x - (level - following) / FULL * model(x, torch.full((1, 1), level), None, None)
        found.append((following, round(float(x), 3)))
    return found


def _at(level: float, x: float) -> tuple[float, float]:
    return round(20 + 600 * (1 - level / FULL), 1), round(130 - 50 * x, 1)


PICTURES = {"paths": paths, "forcing": forcing}
