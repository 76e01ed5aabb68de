"""Lab 04, its picture: ranges of number formats as torch says them."""

from __future__ import annotations

import math

import torch

from course.svg import COLOURS, Svg

LOW = -46.0
HIGH = 40.0
"""Powers of ten at the edges."""


def ranges() -> str:
    picture = Svg(640, 210, "Which sizes of numbers float16, bfloat16 and float32 can hold")
    for row, dtype in enumerate((torch.float16, torch.bfloat16, torch.float32)):
        limits = torch.finfo(dtype)
        y = 20 + 42 * row
        begin = _x(limits.smallest_normal * limits.eps)
        end = _x(limits.max)
        picture.text(10, y + 20, str(dtype).removeprefix("torch."))
        picture.box(begin, y, end - begin, 30, fill=COLOURS[row])
    lost = -9
    for power in (-40, -20, lost, 0, 20):
        x = _x(10.0**power)
        picture.line([(x, 14), (x, 152)], colour=COLOURS[5])
        picture.text(x, 172, f"1e{power}", middle=True)
    picture.text(350, 200, f"a gradient of 1e{lost} is nothing in float16", middle=True)
    return str(picture)


def _x(value: float) -> float:
    return round(100 + 530 * (math.log10(value) - LOW) / (HIGH - LOW), 1)


PICTURES = {"ranges": ranges}
