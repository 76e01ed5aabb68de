"""Chapter 9, its pictures."""

from __future__ import annotations

from course.svg import COLOURS, PAPER, Svg


def pages() -> str:
    picture = Svg(660, 220, "Room for the longest text, and pages of a pool")
    picture.text(20, 24, "room for the longest: most of it stays empty")
    for text, used in enumerate((150, 60, 230)):
        picture.box(20 + 210 * text, 34, 200, 30)
        picture.box(20 + 210 * text, 34, min(used, 200), 30, fill=COLOURS[text])
    picture.text(20, 104, "pages: a table for each text, pages wherever they are free")
    for place, owner in enumerate("0121020.1..2...."):
        fill = PAPER if owner == "." else COLOURS[int(owner)]
        picture.box(20 + 39 * place, 114, 36, 30, fill=fill, text="" if owner == "." else owner)
    picture.text(
        20, 176, "text 0: pages 0, 4, 6      text 1: pages 1, 3, 8      text 2: pages 2, 5, 11", size=13
    )
    picture.text(20, 202, "only the last page of each text is partly empty", size=13)
    return str(picture)


def shared() -> str:
    picture = Svg(640, 230, "Two branches of a text refer to the same pages until one of them writes")
    for place in range(3):
        picture.box(190 + 84 * place, 96, 78, 36, fill=COLOURS[5], text=f"page {place}")
    picture.text(190, 90, "the past: 2 users each", size=12)
    for row, (name, y) in enumerate((("branch A", 20), ("branch B", 176))):
        picture.box(20, y, 110, 36, fill=COLOURS[row], text=name)
        picture.arrow(130, y + 18, 188, 104 if row == 0 else 124)
        picture.box(470, y, 130, 36, fill=COLOURS[row], text=f"own page of {name[-1]}")
    picture.arrow(440, 104, 468, 44)
    picture.arrow(440, 124, 468, 190)
    return str(picture)


PICTURES = {"pages": pages, "shared": shared}
