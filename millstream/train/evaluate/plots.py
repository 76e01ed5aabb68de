"""Plots of an evaluation: adherence per attribute, drift over seconds, response to a switched prompt. One PNG
each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from millstream.report.plots import BandPoint, banded_lines, grouped_bars
from millstream.train.evaluate.adherence import Adherence
from millstream.train.evaluate.response import WATCHED, Response

GOALS = {"adherence": 0.88, "mean": 0.95}
"""Goals for every attribute and for their mean."""


def write_plots(folder: Path, adherence: Sequence[Adherence], responses: Sequence[Response]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "adherence.png", folder / "drift.png"]
    plot_adherence(paths[0], adherence)
    plot_drift(paths[1], adherence)
    if responses:
        paths.append(folder / "response.png")
        plot_response(paths[2], responses)
    return paths


def plot_adherence(path: Path, adherence: Sequence[Adherence]) -> None:
    """Plot bars per attribute at the first moment, seen and held out side by side."""
    first = adherence[0].moments[0]
    grouped_bars(
        path,
        {
            f"{each.prompts}, {each.clips} clips": list(each.moments[0].adherence.values())
            for each in adherence
        },
        list(first.adherence),
        title=f"adherence at second {first.second:g}",
        y_label="recognised, relative to renders",
        goal=GOALS["adherence"],
    )


def plot_drift(path: Path, adherence: Sequence[Adherence]) -> None:
    """Plot the mean over seconds, with its interval."""
    lines = {
        each.prompts: [
            BandPoint(x=moment.second, y=moment.mean, low=moment.interval[0], high=moment.interval[1])
            for moment in each.moments
        ]
        for each in adherence
    }
    banded_lines(
        path,
        lines,
        title="drift",
        x_label="second of the stream",
        y_label="mean adherence, relative to renders",
        goal=GOALS["mean"],
    )


def plot_response(path: Path, responses: Sequence[Response]) -> None:
    """Plot for each mode how many streams followed at which chunk; those that never did stand apart."""
    grouped_bars(
        path,
        {response.mode: _shares(response) for response in responses},
        [*(str(chunk) for chunk in range(1, WATCHED + 1)), "never"],
        title=f"response, {len(responses[0].chunks)} switches a mode",
        x_label="chunks until the new prompt is recognised",
        y_label="share of streams",
    )


def _shares(response: Response) -> list[float]:
    late = response.chunks.count(WATCHED) - response.never
    counts = [response.chunks.count(chunk) for chunk in range(1, WATCHED)] + [late, response.never]
    return [count / len(response.chunks) for count in counts]
