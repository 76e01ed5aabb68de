"""Chapter 13, its pictures."""

from __future__ import annotations

from course.chapters.four_models.reward_calculator import best_share, nats
from course.svg import COLOURS, LINE, Svg


def four() -> str:
    picture = Svg(660, 276, "Who asks whom: actor, reward, reference and critic")
    picture.box(20, 100, 130, 50, fill=COLOURS[0], text="actor")
    picture.box(230, 100, 130, 50, text="sentences")
    picture.arrow(150, 125, 228, 125)
    said = {
        "reward": "how much it is liked",
        "reference": "how far from what was",
        "critic": "what was expected",
    }
    for row, (name, says) in enumerate(said.items()):
        y = 20 + 80 * row
        picture.box(430, y, 110, 50, fill=COLOURS[row + 1], text=name)
        picture.arrow(360, 125, 428, y + 25)
        picture.text(430, y + 66, says, size=12)
    picture.arrow(485, 262, 90, 262)
    picture.arrow(85, 262, 85, 152)
    picture.text(180, 254, "advantages: actor and critic learn", size=13)
    return str(picture)


def price() -> str:
    """Reward against distance of the best policy, for falling prices of a nat."""
    picture = Svg(640, 270, "Reward against distance")
    picture.line([(60, 220), (600, 220)], colour=LINE)
    picture.line([(60, 220), (60, 20)], colour=LINE)
    shares = [best_share(1 / 6, 1.0, 2.0 ** (2 - step / 4)) for step in range(30)]
    points = [(60 + 270 * nats(share, 1 / 6), 220 - 190 * share) for share in shares]
    picture.line([(round(x, 1), round(y, 1)) for x, y in points], colour=COLOURS[0])
    picture.text(70, 34, "share of what is liked", size=13)
    picture.text(420, 250, "nats from the reference", size=13)
    return str(picture)


PICTURES = {"four": four, "price": price}
