"""The timeline of a step of tuning by reward, as a picture: who streams, who learns, and who waits.

    millstream tune recipe.toml --out here
    torchrun --nproc-per-node 2 -m millstream tune asynchronous.toml --out apart
    python -m benchmarks.tune_timeline here apart --out docs/pictures/tuning-timeline.png

Drawn from what the runs measured (`phases` in curve.jsonl). Wants matplotlib: pip install
'millstream[plots]'.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

COLOURS = {"sync": "#888888", "try": "#c6dbef", "rollout": "#3182bd", "reward": "#fdae6b", "learn": "#31a354"}
LANES = ("learning", "streaming")


def steps_of(folder: Path, first: int, count: int) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    found = lines[first : first + count]
    if not found:
        raise SystemExit(f"{folder} has {len(lines)} steps and none after {first}")
    return found


def draw(axes: Any, folder: Path, steps: list[dict[str, Any]]) -> None:
    """One lane for what streams and one for what learns."""
    phases = [tuple(phase) for step in steps for phase in step["phases"]]
    zero = min(begun for _, begun, _ in phases)
    for name, begun, ended in phases:
        lane = LANES.index("learning" if name == "learn" else "streaming")
        axes.broken_barh([(begun - zero, ended - begun)], (lane - 0.4, 0.8), color=COLOURS[name])
    whole = max(ended for _, _, ended in phases) - zero
    axes.set_title(f"{folder.name}: {whole / len(steps):.2f} s a step", fontsize=9, loc="left")
    axes.set_yticks(range(len(LANES)), LANES, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)


def main() -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="folders that millstream tune left")
    parser.add_argument("--first", type=int, default=1, help="step to begin with; the first one warms up")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("tuning-timeline.png"))
    asked = parser.parse_args()
    figure = Figure(figsize=(9, 0.7 + 1.3 * len(asked.runs)), layout="constrained")
    all_axes = figure.subplots(len(asked.runs), sharex=True, squeeze=False)[:, 0]
    for axes, folder in zip(all_axes, asked.runs, strict=True):
        draw(axes, folder, steps_of(folder, asked.first, asked.steps))
    all_axes[-1].set_xlabel("seconds", fontsize=8)
    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in COLOURS.items()],
        ncols=5,
        loc="outside upper right",
        fontsize=8,
    )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(asked.out, dpi=130)
    print(asked.out)


if __name__ == "__main__":
    main()
