"""Things to play with on the site: sliders whose every position was computed by the planner when the site was built.

The page looks values up and knows no formula.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from typing import Any

from millstream.core.config import GIB
from millstream.core.errors import CourseError
from millstream.course.chapters.kv_cache.kv_calculator import SHOWN, label
from millstream.course.chapters.physics import links
from millstream.course.chapters.rl_system.placements import apart_s, together_s
from millstream.planner.bubbles import bubble
from millstream.planner.communication import all_reduce, point_to_point
from millstream.planner.language.serving import tokens_a_call

SHAPES = {label(shape): shape for shape in SHOWN}
LINKS = {link.name: link for link in links.LINKS}
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
SIZES = {f"{count} {unit}": count * scale for unit, scale in UNITS.items() for count in (1, 30)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Slider:
    title: str
    axes: dict[str, Sequence[Any]]
    """What can be moved, and the positions of each."""
    value: Callable[..., str]
    """What is shown, of one position of each."""

    def html(self) -> str:
        places = list(product(*self.axes.values()))
        data = {
            "axes": [[str(each) for each in axis] for axis in self.axes.values()],
            "values": [self.value(*p) for p in places],
        }
        inputs = "".join(
            f'<label>{escape(name)}: <output></output><input type="range" min="0" max="{len(axis) - 1}" value="0"></label>'
            for name, axis in self.axes.items()
        )
        table = escape(json.dumps(data, separators=(",", ":")), quote=True)
        return f'<div class="slider" data-table="{table}"><strong>{escape(self.title)}</strong>{inputs}<p></p></div>'


SLIDERS = {
    "all_reduce": Slider(
        title="An all-reduce, by the planner's formula",
        axes={"bytes": list(SIZES), "ranks": [2, 4, 8, 16, 64], "link": list(LINKS)},
        value=lambda size, ranks, link: f"{all_reduce(SIZES[size], ranks, LINKS[link]):.4g} ms",
    ),
    "message": Slider(
        title="One message, by the planner's formula",
        axes={"bytes": list(SIZES), "link": list(LINKS)},
        value=lambda size, link: f"{point_to_point(SIZES[size], LINKS[link]):.4g} ms",
    ),
    "kv_cache": Slider(
        title="Keys and values of one text in bf16",
        axes={"model": list(SHAPES), "tokens": [1024, 8192, 32768, 131072]},
        value=lambda name, tokens: f"{SHAPES[name].kv_bytes(tokens) / GIB:.3g} GiB",
    ),
    "speculation": Slider(
        title="Letters that a call brings",
        axes={"kept, of 10": [3, 5, 7, 8, 9], "proposed": [1, 2, 4, 8, 16]},
        value=lambda kept, ahead: f"{tokens_a_call(kept / 10, ahead):.2f} letters a call",
    ),
    "placement": Slider(
        title="A step of 300 device seconds of writing and 100 of learning on 16 devices",
        axes={"devices that write": [2, 4, 8, 10, 12, 14]},
        value=lambda writers: (
            f"in turns {apart_s(300, 100, 16, writers, is_late=False):.1f} s, a step late "
            f"{apart_s(300, 100, 16, writers, is_late=True):.1f} s, together {together_s(300, 100, 16):.1f} s"
        ),
    ),
    "bubble": Slider(
        title="How long a stage waits, by the planner's formula",
        axes={"stages": [2, 4, 8, 16], "micro-batches": [1, 2, 4, 8, 16, 32, 64]},
        value=lambda stages, parts: f"{bubble('gpipe', stages, parts):.1%} of the time",
    ),
}


def find_slider(name: str) -> Slider:
    if name not in SLIDERS:
        raise CourseError(f"there is no slider {name!r}; there are {', '.join(SLIDERS)}")
    return SLIDERS[name]
