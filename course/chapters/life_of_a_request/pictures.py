"""Chapter 8, its pictures."""

from __future__ import annotations

from course.svg import COLOURS, Svg

STAGES = ("read", "wait in line", "prefill", "decode, decode, ...", "send")
WIDTHS = (80, 120, 100, 200, 80)


def stages() -> str:
    picture = Svg(680, 150, "A request: read, wait, prefill, decode, send")
    x = 20.0
    for number, (name, width) in enumerate(zip(STAGES, WIDTHS, strict=True)):
        picture.box(x, 30, width, 44, fill=COLOURS[number], text=name)
        x += width + 14
    picture.arrow(20, 100, 376, 100)
    picture.text(24, 122, "time to the first token")
    picture.arrow(384, 100, 676, 100)
    picture.text(388, 122, "time between tokens, again and again")
    return str(picture)


def turns() -> str:
    picture = Svg(640, 230, "Whole batches against turn by turn")
    for y, title, rows in (
        (24, "whole batches", (((0, 8, "A"), (8, 2, "C")), ((0, 2, "B"), (8, 2, "D")))),
        (126, "turn by turn", (((0, 8, "A"),), ((0, 2, "B"), (2, 2, "C"), (4, 2, "D")))),
    ):
        picture.text(14, y - 6, title)
        for row, boxes in enumerate(rows):
            for begin, length, name in boxes:
                picture.box(
                    20 + 48 * begin,
                    y + 38 * row,
                    48 * length - 4,
                    32,
                    fill=COLOURS["ABCD".index(name)],
                    text=name,
                )
    picture.text(20, 220, "one letter of each place a turn; C and D need not wait for A")
    return str(picture)


PICTURES = {"stages": stages, "turns": turns}
