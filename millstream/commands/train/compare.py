"""`millstream train compare RUN RUN`: curves, speed and memory of fine-tuning runs side by side, in one HTML
file."""

from __future__ import annotations

import json
import statistics
from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from millstream.commands.train.run_folder import RECIPE, RUN, flat_settings
from millstream.commands.train.streams import SAMPLES
from millstream.core.errors import ConfigError
from millstream.core.files import Staging
from millstream.report.page import Row, page, table
from millstream.report.svg import curves
from millstream.train.finetune.run import CURVE

LOSSES = ("flow", "ode", "consistency", "match", "critic")


class Curve(NamedTuple):
    """A run as it was written down."""

    name: str
    record: dict[str, Any]
    recipe: dict[str, Any]
    lines: list[dict[str, float]]
    sheet: bytes | None
    """The newest samples, as a PNG."""

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
    def tokens_per_second(self) -> float | None:
        """The median too: clips of several sizes have more tokens or fewer."""
        rates = [
            (after["tokens"] - before["tokens"]) / (after["seconds"] - before["seconds"])
            for before, after in pairwise(self.lines)
            if after["seconds"] > before["seconds"] and after.get("tokens", 0) > before.get("tokens", 0)
        ]
        return statistics.median(rates) if rates else None

    @property
    def waiting(self) -> float | None:
        """Median share of the time in which there were no rows."""
        shares = [line["data"] for line in self.lines[1:] if "data" in line]
        return statistics.median(shares) if shares else None

    @property
    def skipped(self) -> int:
        return sum(line["skipped"] > 0 for line in self.lines)

    def series(self, name: str) -> list[tuple[float, float]]:
        """A loss that was no number is left out."""
        return [(line["step"] + 1, line[name]) for line in self.lines if line.get(name) is not None]

    @property
    def loss_name(self) -> str:
        """Name of the student's loss, whatever its method calls it."""
        return next(name for name in LOSSES if any(name in line for line in self.lines))

    @property
    def loss(self) -> list[tuple[float, float]]:
        return self.series(self.loss_name)

    def by_minutes(self, name: str) -> list[tuple[float, float]]:
        """Return a series over minutes of work: the clock of a run that was resumed begins anew, and goes on
        here."""
        found = list[tuple[float, float]]()
        before = 0.0
        last = 0.0
        for line in self.lines:
            before += last if line["seconds"] < last else 0.0
            last = line["seconds"]
            if line.get(name) is not None:
                found.append(((before + last) / 60, line[name]))
        return found

    def settings(self) -> dict[str, str]:
        """All that was asked for and all that it ran on, by dotted names."""
        flat = dict(flat_settings(self.recipe)) | dict(flat_settings(self.record))
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in flat.items()}


def compare(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the page; a line about each run."""
    if len({folder.resolve() for folder in folders}) < 2:
        raise ConfigError("name two runs or more: millstream train compare RUN RUN")
    runs = [_read(folder) for folder in folders]
    heads = (
        "run",
        "ranks",
        "steps",
        "last loss",
        "lowest",
        "steps/s",
        "tokens/s",
        "data",
        "peak GiB",
        "left out",
    )
    rows = [Row(cells=_cells(run)) for run in runs]
    parts = [
        "<h1>Runs compared</h1>",
        table(heads, rows, numeric=range(1, len(heads))),
        "<h2>Loss</h2>",
        curves({run.name: run.loss for run in runs}, x_label="step", y_label="loss"),
        curves({run.name: run.by_minutes(run.loss_name) for run in runs}, x_label="minutes", y_label="loss"),
        "<h2>Gradient norm</h2>",
        curves({run.name: run.series("norm") for run in runs}, x_label="step", y_label="norm"),
        *_samples(runs),
        *_settings(runs),
    ]
    with Staging(out.parent) as staging:
        staging.path(out.name).write_text(page("Runs compared", parts))
    return ["  ".join(f"{head} {cell}" for head, cell in zip(heads, row.cells, strict=True)) for row in rows]


def _cells(run: Curve) -> list[str]:
    rate = run.steps_per_second
    losses = [loss for _, loss in run.loss]
    tokens = run.tokens_per_second
    waiting = run.waiting
    parallel = run.record["configuration"]["parallel"]
    return [
        run.name,
        str(parallel["pp"] * parallel["dp"] * parallel["cp"] * parallel["tp"]),
        f"{run.lines[-1]['step'] + 1:.0f}",
        f"{losses[-1]:.4f}" if losses else "none",
        f"{min(losses):.4f}" if losses else "none",
        f"{rate:.3g}" if rate else "unknown",
        f"{tokens:,.0f}" if tokens else "unknown",
        f"{waiting:.1%}" if waiting is not None else "unknown",
        f"{max(line['peak_gib'] for line in run.lines):.2f}",
        str(run.skipped),
    ]


def _samples(runs: Sequence[Curve]) -> Iterator[str]:
    """The newest of each run that has some, in the page itself."""
    shown = [(run.name, b64encode(run.sheet).decode()) for run in runs if run.sheet is not None]
    if shown:
        yield "<h2>Newest samples</h2>"
    for name, sheet in shown:
        picture = f"<img alt='{escape(name)}' style='max-width: 100%' src='data:image/png;base64,{sheet}'>"
        yield f"<p class=note>{escape(name)}</p>{picture}"


def _settings(runs: Sequence[Curve]) -> Iterator[str]:
    """Yield a table of the settings that differ, then a folded one of all."""
    settings = [run.settings() for run in runs]
    every = dict.fromkeys(name for each in settings for name in each)
    rows = {name: [each.get(name, "") for each in settings] for name in every}
    heads = ["", *(run.name for run in runs)]
    differ = [Row(cells=[name, *cells]) for name, cells in rows.items() if len(set(cells)) > 1]
    yield f"<h2>What differs</h2>{table(heads, differ)}"
    everything = table(heads, [Row(cells=[name, *cells]) for name, cells in rows.items()])
    yield f"<details><summary>Everything that was written down</summary>{everything}</details>"


def _read(folder: Path) -> Curve:
    try:
        record = json.loads((folder / RUN).read_text())
        recipe = msgspec.toml.decode((folder / RECIPE).read_bytes())
        lines = [json.loads(line) for line in (folder / CURVE).read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder} is no run of `millstream train RECIPE` ({type(error).__name__})"
        ) from None
    if not lines:
        raise ConfigError(f"{folder} has not come to its first step yet")
    sheets = sorted((folder / SAMPLES).glob("*.png"))
    return Curve(folder.name, record, recipe, lines, sheets[-1].read_bytes() if sheets else None)
