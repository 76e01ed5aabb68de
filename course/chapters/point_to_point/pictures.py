"""Chapter 2, its pictures."""

from __future__ import annotations

from course.svg import COLOURS, Svg


def deadlock() -> str:
    picture = Svg(640, 190, "Two ranks that both send first, and two in an agreed order")
    for x, title, lines in (
        (20, "hangs: both send first", (("send to 1", "receive"), ("send to 0", "receive"))),
        (340, "works: an agreed order", (("send to 1", "receive"), ("receive", "send to 0"))),
    ):
        picture.text(x, 26, title)
        for rank, steps in enumerate(lines):
            picture.text(x + 145 * rank, 54, f"rank {rank}")
            for row, step in enumerate(steps):
                picture.box(x + 145 * rank, 64 + 56 * row, 120, 40, fill=COLOURS[rank], text=step)
    picture.arrow(460, 84, 484, 84)
    picture.arrow(484, 140, 460, 140)
    return str(picture)


def pipeline(stages: int = 3, parts: int = 4) -> str:
    picture = Svg(640, 60 + 46 * stages, f"{parts} micro-batches through {stages} stages")
    for stage in range(stages):
        picture.text(12, 52 + 46 * stage, f"stage {stage}")
        for part in range(parts):
            picture.box(
                90 + 86 * (stage + part), 26 + 46 * stage, 82, 38, fill=COLOURS[part], text=f"part {part}"
            )
    picture.text(90, 46 + 46 * stages, f"time, in turns: {parts} + {stages} - 1 = {parts + stages - 1}")
    return str(picture)


PICTURES = {"deadlock": deadlock, "pipeline": pipeline}
