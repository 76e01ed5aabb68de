"""Measure what each rank of a pipeline does when: every schedule really runs, and its bubble is compared with
the formula's.

    python -m benchmarks.pipeline_timelines
    python -m benchmarks.pipeline_timelines --page      # draws the last result again and writes it into docs/training.md

Ranks, schedules, messages and gradients are real; the work of blocks is a sleep
(`course/chapters/pipeline_parallel/timelines.py`). Other programs on the machine disturb it little, and
nothing here says how fast a model is. The quickest of several steps is shown.

`formula` is the planner's, for passes of equal length and messages that take no time. `replayed` uses the
order that ran and the mean time of its passes, part by part, still without messages. The difference between
the two is due to unequal passes; the difference between `replayed` and `measured` is due to messages and
Python.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.pages import row, write_between
from benchmarks.report import RESULTS, write_report
from course.chapters.pipeline_parallel.timelines import (
    MICRO_BATCHES,
    MODEL,
    RANKS,
    SLEEP_S,
    PassKind,
    mean_times,
    recorded_steps,
    replayed,
    seconds_of,
    waits,
)
from millstream.planner.bubbles import TRAINED, bubble
from millstream.train.parallel.plan import ParallelPlan, Schedule

STEPS = 8
PAGE, PICTURE = (RESULTS.parents[1] / "docs" / path for path in ("training.md", "pictures/pipelines.png"))
NAMES: dict[Schedule, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zero-bubble": "zero-bubble",
    "zbv": "ZB-V",
}


def measure(schedule: Schedule) -> dict[str, Any]:
    steps = recorded_steps(schedule, STEPS)
    quickest = min(steps, key=seconds_of)
    times = mean_times(quickest)
    again = replayed(quickest, lambda action: times[action.kind, action.part])
    parts = ParallelPlan(pp=RANKS, schedule=schedule, micro_batches=MICRO_BATCHES).parts_per_rank
    begun = min(rank[0].begin_s for rank in quickest)
    return {
        "schedule": schedule,
        "formula": round(bubble(TRAINED[schedule], RANKS, MICRO_BATCHES, chunks=parts), 4),
        "replayed": round(waits(again), 4),
        "measured": round(waits(quickest), 4),
        "step_ms": round(1e3 * seconds_of(quickest), 1),
        "all_steps_ms": [round(1e3 * seconds_of(step), 1) for step in steps],
        "pass_ms": {f"{kind}{part}": round(1e3 * taken, 1) for (kind, part), taken in sorted(times.items())},
        "actions": [
            [
                [
                    a.kind,
                    a.part,
                    a.micro_batch,
                    round(1e3 * (a.begin_s - begun), 2),
                    round(1e3 * a.seconds, 2),
                ]
                for a in rank
            ]
            for rank in quickest
        ],
    }


def table(report: Mapping[str, Any]) -> Iterator[str]:
    yield row(("schedule", "formula", "replayed", "measured", "a step"))
    yield row(["---"] * 5)
    for each in report["measured"]["rows"]:
        shares = (f"{each[name]:.1%}" for name in ("formula", "replayed", "measured"))
        yield row((NAMES[each["schedule"]], *shares, f"{each['step_ms']:.0f} ms"))
    yield ""
    about = (
        f"{RANKS} ranks, {MICRO_BATCHES} micro-batches, {MODEL.layers} blocks that sleep "
        f"{1e3 * SLEEP_S:.0f} ms three times"
    )
    yield f"{about}; torch {report['versions']['torch']}, commit `{report['commit']}`."


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colours: dict[str, tuple[str, str]] = {
        "F": ("#2a6f97", "#61a5c2"),
        "B": ("#e07a5f", "#f2a48f"),
        "I": ("#e9a23b", "#f4c98a"),
        "W": ("#588157", "#a3b18a"),
    }
    longest = max(each["step_ms"] for each in rows)
    figure = Figure(figsize=(10, 1.35 * len(rows) + 0.9), layout="constrained")
    every = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for axes, each in zip(every, rows, strict=True):
        for rank, actions in enumerate(each["actions"]):
            for kind, part, micro_batch, begin, length in actions:
                axes.barh(
                    -rank,
                    length,
                    left=begin,
                    height=0.84,
                    color=colours[kind][part // RANKS],
                    edgecolor="white",
                    lw=0.5,
                )
                if length > 0.005 * longest:  # the first part has no inputs to give gradients for
                    axes.text(
                        begin + length / 2,
                        -rank,
                        micro_batch,
                        ha="center",
                        va="center",
                        fontsize=7,
                        color="white",
                    )
        said = f"waits {each['measured']:.0%}, by the formula {each['formula']:.0%}"
        axes.set_title(f"{NAMES[each['schedule']]}: {said}", fontsize=9, loc="left")
        axes.set_yticks(
            [-rank for rank in range(RANKS)], [f"rank {rank}" for rank in range(RANKS)], fontsize=8
        )
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    every[-1].set_xlabel("milliseconds")
    meant = {"F": "forward", "B": "backward", "I": "backward: inputs", "W": "backward: weights"}
    handles = [Patch(color=colours[kind][0], label=meant[kind]) for kind in get_args(PassKind)]
    handles.append(Patch(color="#bbbbbb", label="lighter: a rank's second part"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--page", action="store_true", help="draw the last result and write it into docs/training.md"
    )
    if not parser.parse_args().page:
        load = os.getloadavg()[0]
        about = {
            "ranks": RANKS,
            "micro_batches": MICRO_BATCHES,
            "steps": STEPS,
            "layers": MODEL.layers,
            "width": MODEL.width,
        }
        found = [measure(schedule) for schedule in get_args(Schedule)]
        write_report(
            "pipeline_timelines",
            about | {"sleep_ms_per_block": 1e3 * SLEEP_S, "load_before": round(load, 2)},
            {"rows": found},
        )
    report = json.loads((RESULTS / "pipeline_timelines.json").read_text())
    draw(PICTURE, report["measured"]["rows"])
    write_between(PAGE, "benchmarks.pipeline_timelines", table(report))


if __name__ == "__main__":
    main()
