"""Chapter 4, its pictures, drawn from the planner's formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

from course.chapters.physics.ring_against_tree import ring_ms, tree_ms
from course.svg import COLOURS, Svg
from millstream.planner.communication import point_to_point
from millstream.planner.hardware import NETWORK, NVLINK4, PCIE5, Link

Curve = Callable[[float], float]
POWERS = [3 + step / 4 for step in range(25)]
"""Exponents of ten: bytes from 1 kB to 1 GB."""


def curves(title: str, unit: str, named: dict[str, Curve]) -> str:
    """Draw curves against bytes, both axes in powers of ten."""
    picture = Svg(640, 320, title)
    values = {name: [math.log10(curve(10**power)) for power in POWERS] for name, curve in named.items()}
    low = math.floor(min(map(min, values.values())))
    high = math.ceil(max(map(max, values.values())))

    def across(power: float) -> float:
        return 70 + 90 * (power - 3)

    def up(value: float) -> float:
        return 270 - 240 * (value - low) / (high - low)

    for power, name in ((3, "1 kB"), (6, "1 MB"), (9, "1 GB")):
        picture.text(across(power), 292, name, middle=True, size=12)
    for value in range(low, high + 1):
        picture.text(8, up(value) + 4, f"{10.0**value:g} {unit}", size=12)
        picture.line([(70, up(value)), (610, up(value))], colour="#e4e7eb")
    for place, (name, points) in enumerate(values.items()):
        picture.line(
            [(across(power), up(value)) for power, value in zip(POWERS, points, strict=True)],
            colour=COLOURS[place],
        )
        picture.text(90 + 170 * place, 312, name, fill=COLOURS[place], size=13)
    return str(picture)


def messages() -> str:
    links = (NVLINK4, PCIE5, NETWORK)

    def over(link: Link) -> Curve:
        return lambda size: point_to_point(size, link)

    named = {link.name: over(link) for link in links}
    return curves("How long one message takes, by its size, on three links", "ms", named)


def ring_and_tree() -> str:
    named: dict[str, Curve] = {
        "ring, 8 ranks": lambda size: ring_ms(size, 8, NVLINK4),
        "tree, 8 ranks": lambda size: tree_ms(size, 8, NVLINK4),
    }
    return curves("An all-reduce over 8 ranks on NVLink 4, as a ring and as a tree", "ms", named)


PICTURES = {"messages": messages, "ring_and_tree": ring_and_tree}
