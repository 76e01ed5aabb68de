"""Chapter 7, its pictures: two schedules of four stages, laid out by the same function that checks those which ran."""

from __future__ import annotations

from millstream.course.chapters.pipeline_parallel.solution import order_1f1b
from millstream.course.chapters.pipeline_parallel.timelines import UNITS, PipelinePass, RankPasses, replayed
from millstream.course.svg import COLOURS, Svg

STAGES, PARTS, UNIT = 4, 4, 24


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
            colour, length = COLOURS[0 if each.kind == "F" else 1], (each.end_s - each.begin_s) * UNIT
            picture.box(84 + each.begin_s * UNIT, 44 + 40 * stage, length, 34, fill=colour, text=str(each.micro_batch))
    return str(picture)


def gpipe() -> str:
    every = [("F", part) for part in range(PARTS)] + [("B", part) for part in range(PARTS)]
    return schedule("GPipe", [every] * STAGES)


def one_forward_one_backward() -> str:
    return schedule("1F1B", [order_1f1b(stage, STAGES, PARTS) for stage in range(STAGES)])


PICTURES = {"gpipe": gpipe, "one_forward_one_backward": one_forward_one_backward}
