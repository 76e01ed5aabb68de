"""Chapter 11, its pictures."""

from __future__ import annotations

from course.svg import COLOURS, Svg

P = (0.5, 0.3, 0.15, 0.05)
Q = (0.2, 0.3, 0.1, 0.4)


def overlap() -> str:
    picture = Svg(
        640, 270, "What draft and model agree on is kept; the rest is drawn from what the model wants more"
    )
    for place, (p, q) in enumerate(zip(P, Q, strict=True)):
        x = 60 + 140 * place
        scale = 340
        floor = 210
        picture.box(x, floor - scale * min(p, q), 90, scale * min(p, q), fill=COLOURS[2])
        more = abs(p - q)
        colour = COLOURS[0] if p > q else COLOURS[1]
        if more:
            picture.box(x, floor - scale * max(p, q), 90, scale * more, fill=colour)
        picture.text(x + 45, 230, f"p {p:g}, q {q:g}", middle=True, size=12)
    for place, (number, name) in enumerate(
        ((2, "kept: min(p, q)"), (1, "rejected: q - p"), (0, "drawn then: p - q"))
    ):
        picture.box(60 + 190 * place, 244, 16, 16, fill=COLOURS[number])
        picture.text(82 + 190 * place, 257, name, size=13)
    return str(picture)


def one_call() -> str:
    picture = Svg(640, 190, "Four letters proposed, three kept, one drawn anew: one call of the model")
    for place, letter in enumerate("boat"):
        picture.box(130 + 90 * place, 30, 80, 36, fill=COLOURS[1], text=letter)
        picture.arrow(170 + 90 * place, 66, 170 + 90 * place, 88)
    picture.text(20, 53, "draft, four steps", size=13)
    picture.box(130, 90, 350, 30, fill=COLOURS[5], text="the model, one call for all")
    for place, letter in enumerate("boar"):
        picture.box(130 + 90 * place, 136, 80, 36, fill=COLOURS[2] if place < 3 else COLOURS[0], text=letter)
    picture.text(20, 159, "what comes out", size=13)
    return str(picture)


PICTURES = {"overlap": overlap, "one_call": one_call}
