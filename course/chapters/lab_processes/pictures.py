"""Lab 01, its picture."""

from __future__ import annotations

from course.svg import COLOURS, Svg


def shared_rows() -> str:
    picture = Svg(
        640, 230, "Seven rows over two processes: each computes its part, then both have all outputs"
    )
    for rank, rows in enumerate(("rows 0 to 3", "rows 4 to 6, one filling")):
        x = 30 + 320 * rank
        picture.box(x, 20, 260, 36, text=rows)
        picture.arrow(x + 130, 56, x + 130, 80)
        picture.box(x, 82, 260, 44, fill=COLOURS[rank], text=f"rank {rank}: the whole model")
        picture.arrow(x + 130, 126, x + 130, 150)
    picture.box(30, 152, 580, 36, fill=COLOURS[5], text="all-gather: the outputs of rows 0 to 6, for both")
    picture.text(320, 216, "the filling is cut off again", middle=True)
    return str(picture)


PICTURES = {"shared_rows": shared_rows}
