"""Pictures of an evaluation's figures. The only file that knows matplotlib; it draws to files and never opens a window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from millstream.trainer.evaluate.adherence import Adherence
from millstream.trainer.evaluate.response import WATCHED, Response

GOALS = {"adherence": 0.88, "mean": 0.95}
"""What every attribute and their mean should reach."""


def write_plots(folder: Path, adherence: Sequence[Adherence], responses: Sequence[Response]) -> list[Path]:
    """One PNG for each thing there are figures of."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"adherence": draw_adherence(adherence), "drift": draw_drift(adherence)}
    if responses:
        drawn["response"] = draw_response(responses)
    paths = [folder / f"{name}.png" for name in drawn]
    for path, figure in zip(paths, drawn.values(), strict=True):
        figure.savefig(path, dpi=120)
    return paths


def draw_adherence(adherence: Sequence[Adherence]) -> Figure:
    """Bars per attribute at the first moment, seen and held out side by side."""
    figure, axes = _canvas()
    width = 0.8 / len(adherence)
    for i, each in enumerate(adherence):
        shares = each.moments[0].adherence
        places = [place + (i - (len(adherence) - 1) / 2) * width for place in range(len(shares))]
        axes.bar(places, list(shares.values()), width, label=f"{each.prompts}, {each.clips} clips")
        axes.set_xticks(range(len(shares)), list(shares))
    axes.axhline(GOALS["adherence"], color="grey", linestyle=":", label="goal")
    _finish(axes, "recognised, relative to renders", f"adherence at second {adherence[0].moments[0].second:g}")
    return figure


def draw_drift(adherence: Sequence[Adherence]) -> Figure:
    """The mean over seconds, with its interval."""
    figure, axes = _canvas()
    for each in adherence:
        seconds = [moment.second for moment in each.moments]
        low, high = zip(*(moment.interval for moment in each.moments), strict=True)
        (line,) = axes.plot(seconds, [moment.mean for moment in each.moments], marker="o", label=each.prompts)
        axes.fill_between(seconds, low, high, alpha=0.15, color=line.get_color())
    axes.axhline(GOALS["mean"], color="grey", linestyle=":", label="goal")
    axes.set_xscale("log")
    axes.set_xticks(seconds, [f"{second:g}" for second in seconds])
    axes.minorticks_off()
    axes.set_xlabel("second of the stream")
    _finish(axes, "mean adherence, relative to renders", "drift")
    return figure


def draw_response(responses: Sequence[Response]) -> Figure:
    """For each mode, how many streams followed at which chunk; those that never did stand apart."""
    figure, axes = _canvas()
    width, places = 0.8 / len(responses), range(1, WATCHED + 2)
    for i, response in enumerate(responses):
        late = response.chunks.count(WATCHED) - response.never
        counts = [response.chunks.count(chunk) for chunk in range(1, WATCHED)] + [late, response.never]
        shifted = [place + (i - (len(responses) - 1) / 2) * width for place in places]
        axes.bar(shifted, [count / len(response.chunks) for count in counts], width, label=response.mode)
    axes.set_xticks(places, [*(str(chunk) for chunk in range(1, WATCHED + 1)), "never"])
    axes.set_xlabel("chunks until the new prompt is recognised")
    _finish(axes, "share of streams", f"response, {len(responses[0].chunks)} switches a mode")
    return figure


def _canvas() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 4), layout="constrained")
    return figure, figure.subplots()


def _finish(axes: Axes, unit: str, title: str) -> None:
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)
    axes.set_title(title)
    assert axes.figure is not None
    axes.figure.legend(loc="outside lower center", ncols=4, frameon=False)  # beside the picture, never over it
