"""Chapter 12, its pictures."""

from __future__ import annotations

import torch

from course.chapters.ppo.gae_drawn import REWARDS, VALUES
from course.svg import COLOURS, LINE, Svg
from millstream.train.rl.advantages import generalised
from millstream.train.rl.objective import clipped_policy

LAMBDAS = (0.0, 0.5, 0.95, 1.0)


def advantages() -> str:
    """By the train's own function, for the voyage of `gae_drawn`."""
    picture = Svg(660, 290, "Advantages of five decisions for four lambdas")
    reward = torch.tensor([REWARDS])
    value = torch.tensor([VALUES])
    middle = 130
    scale = 130
    picture.line([(50, middle), (640, middle)], colour=LINE)
    for number, trace in enumerate(LAMBDAS):
        advantage = generalised(reward, value, discount=1.0, trace=trace)[0][0]
        for place, each in enumerate(advantage.tolist()):
            x = 60 + 120 * place + 24 * number
            height = abs(scale * each)
            picture.box(
                x,
                middle - height if each > 0 else middle,
                20,
                max(1.0, round(height, 1)),
                fill=COLOURS[number],
            )
        picture.box(60 + 140 * number, 262, 16, 16, fill=COLOURS[number])
        picture.text(82 + 140 * number, 275, f"lambda {trace:g}", size=13)
    for place, each in enumerate(VALUES):
        picture.text(60 + 120 * place, 250, f"critic {each:g}", size=12)
    return str(picture)


def clip() -> str:
    picture = Svg(660, 250, "The clipped objective over the ratio, for a good and a bad decision")
    for side, (advantage, title) in enumerate(((1.0, "a good decision"), (-1.0, "a bad decision"))):
        left = 40 + 320 * side
        middle = 130
        picture.text(left, 24, title)
        picture.line([(left, middle), (left + 280, middle)], colour=LINE)
        points = []
        for step in range(0, 41):
            ratio = max(0.01, step / 20)
            one = torch.ones(1, 1, dtype=torch.float64)
            found = -float(clipped_policy((ratio * one).log(), 0 * one, advantage * one, one, 0.2).loss)
            points.append((round(left + 140 * ratio, 1), round(middle - 50 * found, 1)))
        picture.line(points, colour=COLOURS[side])
        picture.text(left + 130, 236, "ratio 1", size=12)
        picture.line([(left + 140, 40), (left + 140, 220)], colour=LINE)
    return str(picture)


PICTURES = {"advantages": advantages, "clip": clip}
