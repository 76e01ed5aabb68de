"""Chapter 3, its pictures: one for each collective, and the ring."""

from __future__ import annotations

from functools import partial

from course.svg import COLOURS, PAPER, Svg

Cells = list[list[str]]
"""Contents of each of three ranks. A letter is one rank's; several are their sum."""

COLLECTIVES: dict[str, tuple[Cells, Cells]] = {
    "broadcast": ([["a"], [""], [""]], [["a"], ["a"], ["a"]]),
    "scatter": ([["a", "b", "c"], [""], [""]], [["a"], ["b"], ["c"]]),
    "gather": ([["a"], ["b"], ["c"]], [["a", "b", "c"], [""], [""]]),
    "all_gather": ([["a"], ["b"], ["c"]], [["a", "b", "c"]] * 3),
    "reduce": ([["a"], ["b"], ["c"]], [["abc"], [""], [""]]),
    "all_reduce": ([["a"], ["b"], ["c"]], [["abc"]] * 3),
    "reduce_scatter": (
        [["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1", "c2", "c3"]],
        [["sum1"], ["sum2"], ["sum3"]],
    ),
    "all_to_all": (
        [["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1", "c2", "c3"]],
        [["a1", "b1", "c1"], ["a2", "b2", "c2"], ["a3", "b3", "c3"]],
    ),
}


def collective(name: str) -> str:
    before, after = COLLECTIVES[name]
    picture = Svg(480, 170, f"{name.replace('_', '-')}: what three ranks hold before and after")
    for rank in range(3):
        y = 20 + 46 * rank
        picture.text(10, y + 25, f"rank {rank}")
        for x, cells in ((70, before[rank]), (300, after[rank])):
            for place, cell in enumerate(cells):
                picture.box(
                    x + 56 * place, y, 52, 38, fill=_colour(cell), text="a+b+c" if cell == "abc" else cell
                )
        picture.arrow(246, y + 19, 288, y + 19)
    return str(picture)


def _colour(cell: str) -> str:
    if not cell:
        return PAPER
    return COLOURS["abc".index(cell[0])] if len(cell) < 3 else COLOURS[5]


def ring() -> str:
    picture = Svg(640, 210, "A ring of four ranks: in every turn each sends one quarter to the next")
    for rank in range(4):
        x = 30 + 155 * rank
        picture.box(x, 60, 110, 60, fill=COLOURS[rank], text=f"rank {rank}")
        if rank < 3:
            picture.arrow(x + 110, 90, x + 153, 90)
    picture.line([(550, 122), (550, 160), (85, 160)], colour="#1f2933")
    picture.arrow(85, 160, 85, 124)
    picture.text(30, 36, "3 turns: parts are added on their way round; 3 more: the sums go round")
    picture.text(200, 190, "each turn every rank sends 1/4 of the bytes")
    return str(picture)


PICTURES = {name: partial(collective, name) for name in COLLECTIVES} | {"ring": ring}
