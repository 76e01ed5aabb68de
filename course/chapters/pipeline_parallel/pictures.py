"""Chapter 7, its pictures: two schedules of four stages, laid out by the same function that checks those
which ran; and four of two stages as they ran, from what the script `schedules` left in the page."""

from __future__ import annotations

import re
from pathlib import Path

from course.chapters.pipeline_parallel.solution import order_1f1b
from course.chapters.pipeline_parallel.timelines import UNITS, PipelinePass, RankPasses, replayed
from course.page import outputs_of
from course.svg import COLOURS, LINE, Svg

STAGES = 4
PARTS = 8
UNIT = 16
"""Twice as many micro-batches as stages: fewer, and 1F1B would hold as much as GPipe."""
RAN_UNIT = 24


def schedule(title: str, orders: list[list[tuple[str, int]]]) -> str:
    passes: RankPasses = [
        [PipelinePass("F" if kind == "F" else "B", stage, part, 0.0, 0.0) for kind, part in order]
        for stage, order in enumerate(orders)
    ]
    picture = Svg(640, 60 + 40 * STAGES, title)
    picture.text(12, 24, f"{title}: forward blue, backward red")
    for stage, rank in enumerate(replayed(passes, lambda each: UNITS[each.kind])):
        picture.text(12, 66 + 40 * stage, f"stage {stage}")
        for each in rank:
            colour = COLOURS[0 if each.kind == "F" else 1]
            length = (each.end_s - each.begin_s) * UNIT
            picture.box(
                84 + each.begin_s * UNIT, 44 + 40 * stage, length, 34, fill=colour, text=str(each.micro_batch)
            )
    return str(picture)


def gpipe() -> str:
    every = [("F", part) for part in range(PARTS)] + [("B", part) for part in range(PARTS)]
    return schedule("GPipe", [every] * STAGES)


def one_forward_one_backward() -> str:
    return schedule("1F1B", [order_1f1b(stage, STAGES, PARTS) for stage in range(STAGES)])


def as_they_ran() -> str:
    """A box for each pass: digits go forward, small letters back, capitals are gradients of weights alone."""
    said = outputs_of((Path(__file__).parent / "page.md").read_text(encoding="utf-8"))["schedules"]
    runs = [line for line in said if re.match(r"[\w-]+: waits | +rank ", line)]
    picture = Svg(720, 40 + 44 * len(runs), "Four schedules as they ran on two ranks")
    picture.text(12, 24, "forward blue, backward red, gradients of weights alone green")
    for place, line in enumerate(runs):
        y = 44 + 44 * place
        if "|" not in line:
            picture.text(12, y + 26, line.removesuffix(", and so does the order that ran"))
            continue
        name, passes, _ = line.split("|")
        picture.text(12, y + 22, name.strip())
        picture.box(70, y, RAN_UNIT * len(passes), 34, fill=LINE)
        for found in re.finditer(r"([a-z])\1?|[A-Z]|\d", passes):
            colour = COLOURS[0 if found[0].isdigit() else 2 if found[0].isupper() else 1]
            number = found[0] if found[0].isdigit() else str("abcdefgh".index(found[0][0].lower()))
            picture.box(
                70 + RAN_UNIT * found.start(), y, RAN_UNIT * len(found[0]), 34, fill=colour, text=number
            )
    return str(picture)


PICTURES = {"gpipe": gpipe, "one_forward_one_backward": one_forward_one_backward, "as_they_ran": as_they_ran}
