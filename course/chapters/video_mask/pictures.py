"""Video chapter 2, its pictures: drawn from the mask that the scripts use."""

from __future__ import annotations

from course.chapters.video_mask.mask_to_pieces import block_causal
from course.svg import COLOURS, Svg

CELL = 26


def mask() -> str:
    seen = block_causal(4, 2, 4).tolist()
    picture = Svg(640, 270, "Who sees whom: chunks of two frames, a window of four")
    for row, line in enumerate(seen):
        picture.text(30, 54 + CELL * row, f"frame {row} sees")
        for column, cell in enumerate(line):
            fill = {True: COLOURS[row // 2 % 4]}.get(cell, "#ffffff")
            picture.box(140 + CELL * column, 36 + CELL * row, CELL - 3, CELL - 3, fill=fill)
    picture.text(140, 26, "frame 0, 1, 2 ...")
    picture.text(380, 120, "a block is computed whole,")
    picture.text(380, 142, "what is white never is")
    return str(picture)


def ring() -> str:
    picture = Svg(640, 190, "A ring of four slots: the newest two frames take the place of the oldest two")
    for row, frames in enumerate(((0, 1, 2, 3), (4, 5, 2, 3), (4, 5, 6, 7))):
        y = 16 + 56 * row
        picture.text(10, y + 26, f"after chunk {row + 1}")
        for slot, frame in enumerate(frames):
            picture.box(140 + 110 * slot, y, 100, 40, fill=COLOURS[frame // 2 % 4], text=f"frame {frame}")
    return str(picture)


PICTURES = {"mask": mask, "ring": ring}
