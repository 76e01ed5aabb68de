"""Plot to PNG files with matplotlib: grouped bars, lines with bands, timelines. Never opens a window.

matplotlib is an extra, imported only where a plot is drawn: `require_matplotlib` refuses an option before
anything is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 120
NEIGHBOURS = ("#2a6f97", "#e07a5f")
"""Colours of a timeline's bars, in turns by their number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BandPoint:
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineBar:
    row: str
    number: int
    """Written on it."""
    begin_ms: float
    length_ms: float


def require_matplotlib(option: str) -> None:
    try:
        import matplotlib.axes
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(f"{option} needs matplotlib; install it: pip install 'millstream[plots]'") from None


def grouped_bars(
    path: Path,
    groups: Mapping[str, Sequence[float]],
    labels: Sequence[str],
    *,
    title: str,
    y_label: str,
    x_label: str = "",
    goal: float | None = None,
) -> None:
    """At each label a bar of every group, side by side."""
    with _canvas(path, title, y_label) as axes:
        width = 0.8 / len(groups)
        for i, (name, heights) in enumerate(groups.items()):
            shift = (i - (len(groups) - 1) / 2) * width
            axes.bar([place + shift for place in range(len(labels))], list(heights), width, label=name)
        axes.set_xticks(range(len(labels)), list(labels))
        axes.set_xlabel(x_label)
        _draw_goal(axes, goal)


def banded_lines(
    path: Path,
    lines: Mapping[str, Sequence[BandPoint]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    goal: float | None = None,
) -> None:
    """One line a name with the band it lies in; x is logarithmic, with a tick at each point of the last
    line."""
    with _canvas(path, title, y_label) as axes:
        places: list[float] = []
        for name, points in lines.items():
            places = [point.x for point in points]
            (line,) = axes.plot(places, [point.y for point in points], marker="o", label=name)
            low = [point.low for point in points]
            high = [point.high for point in points]
            axes.fill_between(places, low, high, alpha=0.15, color=line.get_color())
        _draw_goal(axes, goal)
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
        axes.set_xlabel(x_label)


def timelines(path: Path, runs: Mapping[str, Sequence[TimelineBar]], *, rows: Sequence[str]) -> None:
    """One timeline a run, all on one axis of milliseconds; `rows` from the top down."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.1 + 1.15 * len(runs)), layout="constrained")
    every = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    heights = {row: float(len(rows) - 1 - i) for i, row in enumerate(rows)}
    for axes, (name, bars) in zip(every, runs.items(), strict=True):
        for bar in bars:
            y = heights[bar.row]
            colour = NEIGHBOURS[bar.number % len(NEIGHBOURS)]
            axes.barh(y, bar.length_ms, left=bar.begin_ms, height=0.8, color=colour)
            middle = bar.begin_ms + bar.length_ms / 2
            axes.text(middle, y, str(bar.number), ha="center", va="center", fontsize=7, color="white")
        axes.set_yticks(list(heights.values()), list(heights))
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.set_title(name, fontsize=9, loc="left")
        axes.spines[["top", "right", "left"]].set_visible(False)
    every[-1].set_xlabel("milliseconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)


@contextmanager
def _canvas(path: Path, title: str, y_label: str) -> Iterator[Axes]:
    """Axes to draw on; written to `path` at the end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    yield axes
    axes.set_ylim(bottom=0)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)  # beside the picture, never over it
    figure.savefig(path, dpi=DPI)


def _draw_goal(axes: Axes, goal: float | None) -> None:
    if goal is not None:
        axes.axhline(goal, color="grey", linestyle=":", label="goal")
