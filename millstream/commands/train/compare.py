"""`millstream train compare RUN RUN`: curves, speed and memory of fine-tuning runs side by side, in one HTML file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from millstream.commands.train.tune import RUN
from millstream.core.errors import ConfigError
from millstream.core.files import Staging
from millstream.planner.drawing import curves
from millstream.planner.page import Row, page, table
from millstream.trainer.tuning.run import CURVE

LOSSES = ("flow", "ode", "consistency", "match", "critic")


class Curve(NamedTuple):
    """A run as it was written down."""

    name: str
    record: dict[str, Any]
    lines: list[dict[str, float]]

    @property
    def steps_per_second(self) -> float | None:
        """The median: pauses and starts do not count."""
        rates = [
            (after["step"] - before["step"]) / (after["seconds"] - before["seconds"])
            for before, after in pairwise(self.lines)
            if after["seconds"] > before["seconds"] and after["step"] > before["step"]
        ]
        return statistics.median(rates) if rates else None

    @property
    def skipped(self) -> int:
        return sum(line["skipped"] > 0 for line in self.lines)

    def series(self, name: str) -> list[tuple[float, float]]:
        """A loss that was no number is left out."""
        return [(line["step"] + 1, line[name]) for line in self.lines if line.get(name) is not None]

    @property
    def loss(self) -> list[tuple[float, float]]:
        """The student's, whatever its method calls it."""
        return self.series(next(name for name in LOSSES if any(name in line for line in self.lines)))


def compare(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the page; a line about each run."""
    if len({folder.resolve() for folder in folders}) < 2:
        raise ConfigError("name two runs or more: millstream train compare RUN RUN")
    runs = [_read(folder) for folder in folders]
    heads = ("run", "ranks", "steps", "last loss", "lowest", "steps/s", "tokens/s", "peak GiB", "left out")
    rows = [Row(cells=_cells(run)) for run in runs]
    parts = [
        "<h1>Runs compared</h1>",
        table(heads, rows, numeric=range(1, len(heads))),
        "<h2>Loss</h2>",
        curves({run.name: run.loss for run in runs}, x_label="step", y_label="loss"),
        "<h2>Gradient norm</h2>",
        curves({run.name: run.series("norm") for run in runs}, x_label="step", y_label="norm"),
        *(f"<h2>{escape(run.name)}</h2><pre><code>{escape(json.dumps(run.record, indent=1))}</code></pre>" for run in runs),
    ]
    with Staging(out.parent) as staging:
        staging.path(out.name).write_text(page("Runs compared", parts))
    return ["  ".join(f"{head} {cell}" for head, cell in zip(heads, row.cells, strict=True)) for row in rows]


def _cells(run: Curve) -> list[str]:
    rate, losses = run.steps_per_second, [loss for _, loss in run.loss]
    tokens = run.record["measured"]["tokens_per_step"] * rate if rate else None
    parallel = run.record["configuration"]["parallel"]
    return [
        run.name,
        str(parallel["pp"] * parallel["dp"] * parallel["cp"] * parallel["tp"]),
        f"{run.lines[-1]['step'] + 1:.0f}",
        f"{losses[-1]:.4f}" if losses else "none",
        f"{min(losses):.4f}" if losses else "none",
        f"{rate:.3g}" if rate else "unknown",
        f"{tokens:,.0f}" if tokens else "unknown",
        f"{max(line['peak_gib'] for line in run.lines):.2f}",
        str(run.skipped),
    ]


def _read(folder: Path) -> Curve:
    try:
        record = json.loads((folder / RUN).read_text())
        lines = [json.loads(line) for line in (folder / CURVE).read_text().splitlines()]
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{folder} is no run of `millstream train RECIPE` ({type(error).__name__})") from None
    if not lines:
        raise ConfigError(f"{folder} has not come to its first step yet")
    return Curve(folder.name, record, lines)
