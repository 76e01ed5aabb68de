"""The failure lab, its picture."""

from __future__ import annotations

from course.svg import COLOURS, Svg


def where_to_look() -> str:
    picture = Svg(640, 300, "From what one sees to the tool that finds it")
    rows = (
        ("nothing happens", "where each rank waits; records of calls"),
        ("wrong numbers, no error", "records of all ranks, side by side"),
        ("an error in the middle", "facts of all ranks, compared at the start"),
        ("slow, and steps are alike", "a trace; what a rank does by itself"),
        ("out of memory, and much is free", "a snapshot: the largest free piece"),
        ("the loss is nan", "the first output that is not finite"),
    )
    for place, (seen, tool) in enumerate(rows):
        y = 14 + 46 * place
        picture.box(14, y, 240, 36, fill=COLOURS[1], text=seen)
        picture.arrow(254, y + 18, 286, y + 18)
        picture.box(288, y, 338, 36, fill=COLOURS[0], text=tool)
    return str(picture)


PICTURES = {"where_to_look": where_to_look}
