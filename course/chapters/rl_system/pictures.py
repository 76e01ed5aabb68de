"""Chapter 14, its pictures."""

from __future__ import annotations

from course.chapters.rl_system.placements import apart_s, together_s
from course.svg import COLOURS, Svg

WRITE = 6.0
LEARN = 2.0
DEVICES = 4


def placement() -> str:
    """Two steps of each, for four devices: lengths are those of the formulas."""
    picture = Svg(680, 300, "Together, apart in turns, apart a step late")
    scale = 70.0

    def boxes(y: float, kind: int, length: float, begins: tuple[float, ...]) -> None:
        for number, begin in enumerate(begins):
            name = f"{'write' if kind == 0 else 'learn'} {number}" if length > 0.8 else str(number)
            picture.box(90 + scale * begin, y, scale * length - 2, 30, fill=COLOURS[kind], text=name)

    write = WRITE / DEVICES
    learn = LEARN / DEVICES
    whole = together_s(WRITE, LEARN, DEVICES)
    picture.text(10, 36, "together")
    boxes(24, 0, write, (0, whole))
    boxes(24, 1, learn, (write, whole + write))
    half_write = 2 * WRITE / DEVICES
    half_learn = 2 * LEARN / DEVICES
    in_turns = apart_s(WRITE, LEARN, DEVICES, DEVICES // 2, is_late=False)
    picture.text(10, 96, "in turns")
    boxes(84, 0, half_write, (0, in_turns))
    boxes(118, 1, half_learn, (half_write, in_turns + half_write))
    picture.text(10, 196, "a step late")
    writing = WRITE / 3
    learning = LEARN / 1
    boxes(184, 0, writing, (0, writing, 2 * writing))
    boxes(218, 1, learning, (writing, 2 * writing))
    picture.text(90, 284, "upper line: devices that write; lower line: devices that learn", size=13)
    return str(picture)


PICTURES = {"placement": placement}
