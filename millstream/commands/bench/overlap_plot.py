"""A timeline of front and mesh: which worked on which chunk when. Knows matplotlib; draws to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from millstream.engine.stream import Stretch

SHOWN = 6
"""Chunks of each run, from the middle of it."""
COLOURS = ("#2a6f97", "#e07a5f")
ROWS = {"mesh": 1.0, "front": 0.0}


def draw_timelines(path: Path, runs: Mapping[str, Sequence[Stretch]]) -> None:
    figure = Figure(figsize=(9, 1.1 + 1.15 * len(runs)), layout="constrained")
    every = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, stretches) in zip(every, runs.items(), strict=True):
        middle = len(stretches) // 2
        _draw_run(axes, name, stretches[middle : middle + SHOWN])
    every[-1].set_xlabel("milliseconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_run(axes: Axes, name: str, stretches: Sequence[Stretch]) -> None:
    """The mesh above, the front below; neighbouring chunks in two colours."""
    start_s = min(each.back_s - each.mesh_ms / 1e3 for each in stretches)
    for each in stretches:
        colour = COLOURS[each.chunk_index % 2]
        _bar(axes, "mesh", each.back_s - each.mesh_ms / 1e3 - start_s, each.mesh_ms / 1e3, colour, each.chunk_index)
        _bar(axes, "front", each.decode_begun_s - start_s, each.shown_s - each.decode_begun_s, colour, each.chunk_index)
    axes.set_yticks(list(ROWS.values()), list(ROWS))
    axes.set_ylim(-0.5, 1.5)
    axes.set_title(name, fontsize=9, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _bar(axes: Axes, row: str, begin_s: float, length_s: float, colour: str, number: int) -> None:
    axes.barh(ROWS[row], 1e3 * length_s, left=1e3 * begin_s, height=0.8, color=colour)
    axes.text(1e3 * (begin_s + length_s / 2), ROWS[row], str(number), ha="center", va="center", fontsize=7, color="white")
