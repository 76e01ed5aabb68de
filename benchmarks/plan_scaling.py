"""Plan what 1 to 1,024 devices gain: curves of several cards, where one stream stops gaining, and why.
Planned, not measured.

    python -m benchmarks.plan_scaling           # the table
    python -m benchmarks.plan_scaling --docs    # into docs/planning.md, with docs/pictures/scaling.png

Loads no torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.pages import row as table_row
from benchmarks.pages import write_between
from millstream.core.config import parse_size
from millstream.core.presets import MODELS
from millstream.planner.hardware import parse_fleet
from millstream.planner.judge import PlanAsk
from millstream.planner.questions.scale import Rung, Stall, scaling, stall
from millstream.planner.software import SOFTWARE
from millstream.planner.workload import Workload

PAGE = Path(__file__).parents[1] / "docs" / "planning.md"
PICTURE = PAGE.parent / "pictures" / "scaling.png"
CARDS = ("A100", "H100", "B200", "RTX4090")
STREAMS = (("1.3b", "480x832", 9), ("14b", "480x832", 6))


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    what: str
    rungs: tuple[Rung, ...]
    end: Stall | None


def found() -> list[Curve]:
    return [curve_of(card, *stream) for stream in STREAMS for card in CARDS]


def curve_of(card: str, model: str, size: str, window: int) -> Curve:
    """With compiled kernels, which run on a mesh as well."""
    spec = MODELS[f"wan2.1-t2v-{model}"]
    height, width = parse_size(size)
    stream = replace(spec.stream, height=height, width=width, window=window)
    work = Workload(spec=spec, stream=stream, software=SOFTWARE["compiled"], text_place="cpu")
    rungs = scaling(PlanAsk(work=work, fleet=parse_fleet(card)))
    return Curve(what=f"{model.upper()} {size}, {card}", rungs=rungs, end=stall(rungs))


def table(curves: Sequence[Curve]) -> list[str]:
    lines = [
        "| one stream, 4 steps | FPS on the fewest | at its end | stalls at | why |",
        "|---|---|---|---|---|",
    ]
    for curve in curves:
        first = curve.rungs[0]
        last = curve.rungs[-1]
        end = curve.end
        ends = (str(end.devices), end.why) if end is not None else ("nowhere", "")
        cells = (
            f"{first.quickest.fps:.1f} on {first.devices}",
            f"{last.quickest.fps:.1f} as {last.quickest.layout}",
        )
        lines.append(table_row([curve.what, *cells, *ends]))
    return lines


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Speed of one stream over devices; a cross where it stalls."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    for axes, (model, size, _) in zip(figure.subplots(1, len(STREAMS)), STREAMS, strict=True):
        for curve in (each for each in curves if each.what.startswith(f"{model.upper()} ")):
            line = axes.plot(
                [rung.devices for rung in curve.rungs],
                [rung.quickest.fps for rung in curve.rungs],
                marker=".",
            )[0]
            line.set_label(curve.what.rpartition(" ")[2])
            ended = [
                rung for rung in curve.rungs if curve.end is not None and rung.devices == curve.end.devices
            ]
            axes.plot(
                [r.devices for r in ended],
                [r.quickest.fps for r in ended],
                "x",
                color=line.get_color(),
                markersize=9,
            )
        axes.set(
            xscale="log",
            title=f"{model.upper()} {size}",
            xlabel="devices",
            ylabel="FPS of one stream, planned",
        )
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, loc="center right")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", action="store_true", help="into docs/planning.md, with the plot")
    options = parser.parse_args()
    curves = found()
    print("\n".join(table(curves)))
    if options.docs:
        write_between(PAGE, "plan_scaling", table(curves))
        draw(curves, PICTURE)


if __name__ == "__main__":
    main()
