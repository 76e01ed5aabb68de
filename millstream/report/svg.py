"""Draw plots as SVG text: stacked bars with a limit, labelled points, curves, and lanes of a timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = (
    "#3b6ea5", "#d98032", "#5a9367", "#a34a5e", "#7a6aa8", "#8a8d91", "#c2a83e", "#4aa3a3", "#b86f9f",
    "#6b4f3a", "#9bb55c", "#d46a6a",
)  # fmt: skip
_LEFT = 150
_RIGHT = 90
_ROW = 28
_WIDTH = 860
_LETTER = 6.5
"""Width of a letter of small text, at most on average."""
_NOTHING = 1e-300
"""Least maximum of an axis with round steps; below it they would be zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    label: str
    parts: Mapping[str, float]
    note: str
    """At the bar's end."""
    dim: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    label: str
    x: float
    y: float
    marked: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    label: str
    patches: Mapping[str, Sequence[tuple[float, float, float]]]
    """By name: from, to, and how full it is there, 0 to 1."""


def stacked_bars(
    bars: Sequence[Bar], *, limit: float, limit_label: str, meant: Mapping[str, str] | None = None
) -> str:
    """Horizontal, longest axis shared; the limit is a dashed line. `meant` are colours that names have
    elsewhere too."""
    names = list(dict.fromkeys(name for bar in bars for name in bar.parts))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)} | dict(meant or {})
    longest = max([limit, *(sum(bar.parts.values()) for bar in bars)]) * 1.02
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    top = 22 + 20 * _legend_rows(names)
    height = top + _ROW * len(bars) + 12
    drawn = [_legend(names, colours)]
    for row, bar in enumerate(bars):
        drawn.append(_bar(bar, top + _ROW * row, scale, colours))
    x = _LEFT + limit * scale
    drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4}" y2="{height - 8}" class="limit"/>')
    drawn.append(
        f'<text x="{x:.1f}" y="{top - 8}" text-anchor="middle" class="small">{escape(limit_label)}</text>'
    )
    return _svg(height, drawn)


def points(found: Sequence[Point], *, x_label: str, y_label: str) -> str:
    """Both axes from zero; marked points are joined."""
    axes = _Axes(max([point.x for point in found] or [1.0]), max([point.y for point in found] or [1.0]))
    place = axes.place
    drawn = axes.drawn(x_label, y_label)
    front = [place(point.x, point.y) for point in sorted(found, key=lambda p: p.x) if point.marked]
    if len(front) > 1:
        drawn.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in front)}" class="front"/>')
    drawn += _labelled([(point, *place(point.x, point.y)) for point in found])
    return _svg(axes.height, drawn)


def curves(series: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str, y_label: str) -> str:
    """One line a name, both axes from zero."""
    every = [point for line in series.values() for point in line]
    axes = _Axes(max([x for x, _ in every] or [1.0]), max([y for _, y in every] or [1.0]))
    drawn = axes.drawn(x_label, y_label)
    for index, (name, line) in enumerate(series.items()):
        placed = " ".join(f"{x:.1f},{y:.1f}" for x, y in (axes.place(*point) for point in line))
        colour = COLOURS[index % len(COLOURS)]
        drawn.append(
            f'<polyline points="{placed}" class="curve" '
            f'stroke="{colour}"><title>{escape(name)}</title></polyline>'
        )
        drawn.append(f'<text x="{_WIDTH - 140}" y="{40 + 18 * index}" fill="{colour}">{escape(name)}</text>')
    return _svg(axes.height, drawn)


def lanes(rows: Sequence[Lane], *, length: float, unit: str, meant: Mapping[str, str] | None = None) -> str:
    """A timeline: each lane's patches from 0 to `length`, the more opaque the fuller."""
    names = list(dict.fromkeys(name for row in rows for name in row.patches))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)} | dict(meant or {})
    top = 12 + 20 * _legend_rows(names)
    scale = (_WIDTH - _LEFT - 20) / max(length, 1e-9)
    drawn = [_legend(names, colours)]
    for index, row in enumerate(rows):
        y = top + 24 * index
        drawn.append(
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end" class="small">{escape(row.label)}</text>'
        )
        for name, patches in row.patches.items():
            drawn += [
                f'<rect x="{_LEFT + begin * scale:.1f}" y="{y}" '
                f'width="{max(0.3, (end - begin) * scale):.1f}" height="18" '
                f'fill="{colours[name]}" opacity="{fill:.2f}"><title>{escape(name)}</title></rect>'
                for begin, end, fill in patches
            ]
    bottom = top + 24 * len(rows) + 4
    for tick in (tick for tick in _ticks(length) if tick <= length):
        x = _LEFT + tick * scale
        drawn.append(
            f'<text x="{x:.0f}" y="{bottom + 12}" text-anchor="middle" class="small">{tick:g} '
            f"{escape(unit)}</text>"
        )
    return _svg(bottom + 20, drawn)


class _Axes:
    """Two axes from zero, with round numbers at them."""

    height = 380
    left = 80
    bottom = 330
    top = 20
    width = _WIDTH - left - 150

    def __init__(self, most_x: float, most_y: float) -> None:
        self.ticks_x = _ticks(most_x)
        self.ticks_y = _ticks(most_y)

    def place(self, x: float, y: float) -> tuple[float, float]:
        return self.left + self.width * x / self.ticks_x[-1], self.bottom - (
            self.bottom - self.top
        ) * y / self.ticks_y[-1]

    def drawn(self, x_label: str, y_label: str) -> list[str]:
        left = self.left
        bottom = self.bottom
        drawn = [f'<path d="M{left} {self.top} V{bottom} H{left + self.width}" class="axis"/>']
        for tick in self.ticks_x[1:]:
            x, _ = self.place(tick, 0)
            drawn.append(
                f'<text x="{x:.0f}" y="{bottom + 18}" text-anchor="middle" class="small">{tick:g}</text>'
            )
        for tick in self.ticks_y[1:]:
            _, y = self.place(0, tick)
            drawn.append(
                f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end" class="small">{tick:g}</text>'
            )
        drawn.append(
            f'<text x="{left + self.width / 2:.0f}" y="{bottom + 40}" '
            f'text-anchor="middle">{escape(x_label)}</text>'
        )
        drawn.append(f'<text x="{left + 6}" y="{self.top - 6}" class="small">{escape(y_label)}</text>')
        return drawn


def _ticks(most: float) -> list[float]:
    """From zero past `most` in four to eight round steps."""
    if most < _NOTHING:
        return [0.0, 1.0]
    magnitude = 10 ** math.floor(math.log10(most))
    step = next(magnitude * share for share in (0.2, 0.5, 1.0, 2.0) if most / (magnitude * share) <= 7)
    return [step * i for i in range(math.ceil(most / step * 1.02) + 1)]


def _labelled(placed: Sequence[tuple[Point, float, float]]) -> list[str]:
    """Marked points carry their names, the others show theirs when pointed at."""
    drawn: list[str] = []
    for point, x, y in sorted(placed, key=lambda item: item[0].marked):
        colour, radius = (COLOURS[0], 5.0) if point.marked else (COLOURS[5], 3.5)
        title = f"<title>{escape(point.label)}</title>"
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">{title}</circle>')
        if point.marked:
            drawn.append(f'<text x="{x + 6:.1f}" y="{y - 8:.1f}" class="small">{escape(point.label)}</text>')
    return drawn


def _bar(bar: Bar, y: float, scale: float, colours: Mapping[str, str]) -> str:
    x = float(_LEFT)
    drawn = [f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(bar.label)}</text>']
    for name, value in bar.parts.items():
        width = value * scale
        title = f"<title>{escape(name)}: {value:.3g}</title>"
        shade = ' opacity="0.45"' if bar.dim else ""
        drawn.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="19" '
            f'fill="{colours[name]}"{shade}>{title}</rect>'
        )
        x += width
    drawn.append(f'<text x="{x + 6:.1f}" y="{y + 16}" class="small">{escape(bar.note)}</text>')
    return "".join(drawn)


def _legend(names: Sequence[str], colours: Mapping[str, str]) -> str:
    drawn = []
    columns = _legend_columns(names)
    for index, name in enumerate(names):
        x = 10 + (_WIDTH - 20) // columns * (index % columns)
        y = 4 + 20 * (index // columns)
        drawn.append(f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colours[name]}"/>')
        drawn.append(f'<text x="{x + 16}" y="{y + 10}" class="small">{escape(name)}</text>')
    return "".join(drawn)


def _legend_columns(names: Sequence[str]) -> int:
    """As many as the longest name leaves room for, five at most."""
    longest = 24 + _LETTER * max((len(name) for name in names), default=0)
    return max(1, min(5, int((_WIDTH - 20) / longest)))


def _legend_rows(names: Sequence[str]) -> int:
    return -(-len(names) // _legend_columns(names))


def _svg(height: float, drawn: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{"".join(drawn)}</svg>'
