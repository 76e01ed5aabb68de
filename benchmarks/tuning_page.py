"""The tables of docs/tuning.md, from the results that are there.

python -m benchmarks.tuning_page
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.pages import report_of, row, write_tables
from benchmarks.tune import CONTINUED, LONGER, WAYS
from millstream.train.data.vocabulary import CLASSES

PAGE = Path(__file__).parents[1] / "docs" / "tuning.md"
LOOKS = ("flicker", "edges")
HUNDREDTHS = (*CLASSES, *LOOKS)
LATER = ("mean", "lost")


def tuned() -> Iterator[str]:
    report = report_of("tune")
    found = report["measured"]
    before = report["measured"]["before"]
    second = f"{report['configuration']['late']:.0f} s"
    yield row(["", *HUNDREDTHS, f"all at {second}", f"most lost until {second}"])
    yield "|---|" + "---|" * (len(HUNDREDTHS) + len(LATER))
    if real := before.get("real"):
        yield row(
            [
                "renders, named right",
                *(f"{100 * real[name]:.1f}" for name in CLASSES),
                *("" for _ in (*LOOKS, *LATER)),
            ]
        )
    later = [f"{100 * before['late'][name]:.1f}" if "late" in before else "" for name in LATER]
    yield row(["Brook, of renders", *(f"{100 * before['soon'][name]:.1f}" for name in HUNDREDTHS), *later])
    for way in WAYS:
        if way in found:
            points = found[way]["soon"]["points_better"]
            late = found[way].get("late")
            of = CONTINUED if way == LONGER else way
            name = f"`{of}`, {found[way]['seconds'] / 60:.1f} minutes, {found[way]['steps']:.0f} steps"
            name += f", {seeds} seeds" if (seeds := found[way]["soon"]["seeds"]) > 1 else ""
            later = [f"{late['points_better'][each]:+.1f}" if late else "" for each in LATER]
            yield row([name, *(f"{points[each]:+.1f}" for each in HUNDREDTHS), *later])


def forks() -> Iterator[str]:
    found = report_of("tune_forks")["measured"]
    yield (
        f"| {found['groups']} groups of {found['futures']} futures | with one past | with a past each | "
        "times better |"
    )
    yield "|---|---|---|---|"
    for said, way in (("streamed", "_streamed"), ("streamed and shown", "")):
        if f"one_past{way}_s" in found:
            times = (f"{found[f'{name}{way}_s']:.2f} s" for name in ("one_past", "own_pasts"))
            yield row([said, *times, f"{found[f'times_better{way}']:.2f}"])


def edges() -> Iterator[str]:
    found = report_of("tune_edges")["measured"]
    yield row(["scale of `edges`", *HUNDREDTHS])
    yield "|---|" + "---|" * len(HUNDREDTHS)
    for scale, points in found["points_better_by_scale"].items():
        yield row([f"{scale}, one minute", *(f"{points[name]:+.1f}" for name in HUNDREDTHS)])
    for said, moment in (("2 s", "soon"), ("120 s", "late")):
        points = found["four_minutes_without"][moment]["points_better"]
        yield row(
            [f"0, four minutes, three seeds, at {said}", *(f"{points[name]:+.1f}" for name in HUNDREDTHS)]
        )


def shipped() -> Iterator[str]:
    """The first seed of the way that goes on, which ships."""
    report = report_of("tune")
    found = report["measured"]
    late = f"{report['configuration']['late']:.0f} s"
    yield row(["", *HUNDREDTHS, *LATER])
    yield "|---|" + "---|" * (len(HUNDREDTHS) + len(LATER))
    for said, moment in (("2 s", "soon"), (late, "late")):
        before = found["before"][moment]
        points = found[LONGER][moment]["points_by_seed"][0]
        figures = {name: 100 * before[name] for name in (*HUNDREDTHS, *LATER)}
        yield row([f"before, at {said}", *(f"{figure:.1f}" for figure in figures.values())])
        yield row(
            [f"tuned, at {said}", *(f"**{figure + points[name]:.1f}**" for name, figure in figures.items())]
        )


TABLES = {
    "benchmarks.tune": tuned,
    "benchmarks.tune shipped": shipped,
    "benchmarks.tune forks": forks,
    "benchmarks.tune edges": edges,
}

if __name__ == "__main__":
    write_tables(PAGE, TABLES)
