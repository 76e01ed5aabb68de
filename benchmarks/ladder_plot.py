"""Plot of a chunk's time before and after each speed-up, with the floor: a bar for each rung that
`ladder.py` measured.

python -m benchmarks.ladder_plot        # docs/pictures/chunk-time.png
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.ladder import FLOORED, RUNGS
from benchmarks.report import RESULTS

PATH = Path(__file__).parents[1] / "docs" / "pictures" / "chunk-time.png"
COLOURS = {
    "step": "#2a6f97",
    "commit": "#61a5c2",
    "decode": "#e07a5f",
    "convert": "#b5838d",
    "noise": "#9a8c98",
    "rest": "#8d99ae",
}
INCHES_A_BAR = 0.3
BESIDE_MS = 5.0
"""Phases that run beside each other for longer than this have no place in a bar."""

Bars = dict[str, dict[str, float]]
"""Milliseconds of each phase, by what the bar is called."""


def climbed() -> dict[str, dict[str, Any]]:
    """Every stream that was measured, its rungs in their order."""
    streams: dict[str, dict[str, Any]] = {}
    for rung in RUNGS:
        for file in sorted(RESULTS.glob("stream-*.json")):
            if not re.fullmatch(rf"stream-.*-w\d+-{rung}", file.stem):
                continue
            report = json.loads(file.read_text())
            stream = report["configuration"]["stream"]
            model = report["configuration"]["model"]
            title = f"{model}, {stream['height']}x{stream['width']}, window {stream['window']}"
            phases = report["measured"]["phases"]
            if phases["rest"]["ms"] > -BESIDE_MS:
                streams.setdefault(title, {})[rung] = phases
    return streams


def bars_of(rungs: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for rung, phases in rungs.items():
        yield rung, {name: phase["ms"] for name, phase in phases.items()}
    for rung in FLOORED:
        if rung in rungs:
            floors = {name: phase["floor_ms"] for name, phase in rungs[rung].items() if "floor_ms" in phase}
            yield f"floor, {'fp8' if rung == 'fp8' else 'bf16'}", floors


def draw_stream(axes: Axes, title: str, bars: Bars) -> None:
    for row, parts in enumerate(bars.values()):
        left = 0.0
        for phase, colour in COLOURS.items():
            ms = max(0.0, parts.get(phase, 0.0))
            axes.barh(row, ms, left=left, height=0.75, color=colour, label=phase if row == 0 else None)
            left += ms
        axes.text(left, row, f" {left:.0f} ms", va="center", fontsize=7)
    axes.set_yticks(range(len(bars)), list(bars), fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    streams = {title: dict(bars_of(rungs)) for title, rungs in climbed().items()}
    assert streams, f"no stream-*.json in {RESULTS}; run python -m benchmarks.ladder on a GPU"
    heights = [len(bars) + 2 for bars in streams.values()]
    figure = Figure(figsize=(9, INCHES_A_BAR * sum(heights)), layout="constrained")
    every = figure.subplots(len(streams), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, (title, bars) in zip(every, streams.items(), strict=True):
        draw_stream(axes, title, bars)
    figure.legend(
        *every[0].get_legend_handles_labels(),
        loc="outside upper right",
        fontsize=7,
        ncols=len(COLOURS),
        frameon=False,
    )
    every[-1].set_xlabel("milliseconds of a chunk")
    figure.savefig(PATH, dpi=120)


if __name__ == "__main__":
    main()
