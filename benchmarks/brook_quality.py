"""Measure what Brook loses in 8 bits: adherence and flicker of the same prompts, in float32 and in the mode
of every kind of CPU that this one can emulate.

    python -m benchmarks.brook_quality
    python -m benchmarks.brook_quality --page       # writes the last result into docs/brook.md

96 prompts seen in training and 96 held out are judged after two seconds by the classifier in the package. It
is one of the two that gave the reward when Brook was tuned, so only differences between rows are meaningful.
Streams are generated on the CPU; those in float32 are generated, and all are judged, on a GPU where there is
one. In every row flicker and edges are relative to renders decoded by the VAE in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.brook import NAMES, kinds_here, write_page
from benchmarks.pages import row

COUNT = 96
SECOND = 2.0
ADHERENCE_LOST = 0.01
FLICKER_MORE = 0.10
"""At most, against float32."""


def judge(precision: str, device: str, reference: str, count: int) -> dict[str, dict[str, float]]:
    from millstream.commands.engine_from_options import resolve
    from millstream.commands.options import ModelOptions
    from millstream.engine.engine import Engine
    from millstream.train.evaluate.adherence import judge_prompts
    from millstream.train.evaluate.classifier import JUDGE, load_classifier

    engine = Engine(resolve(ModelOptions(weights=["bundled"], device=device, precision=precision)))
    plain = Engine("brook", weights="bundled", device=reference, dtype="float32")
    classifier = load_classifier(JUDGE, plain.device)
    found = {}
    for name, held_out in (("seen", False), ("held_out", True)):
        moment = judge_prompts(
            engine.model,
            classifier,
            config=engine.stream_config(),
            held_out=held_out,
            count=count,
            seconds=(SECOND,),
            reference=plain.model,
        ).moments[0]
        found[name] = {
            "adherence": moment.mean,
            "flicker": moment.flicker,
            "edges": moment.edges,
            "distance": moment.distance,
        }
    return found


def in_fresh_process(
    kind: str, precision: str, device: str, count: int, threads: int
) -> dict[str, dict[str, float]]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.brook_quality",
        "--judge",
        precision,
        "--on",
        device,
        "--count",
        str(count),
    ]
    limit = {"OMP_NUM_THREADS": str(threads)} | ({} if kind == "other" else {"MILLSTREAM_CPU": kind})
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | limit)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def missed(found: dict[str, dict[str, float]], plain: dict[str, dict[str, float]]) -> list[str]:
    lines = []
    for name, figures in found.items():
        lost = plain[name]["adherence"] - figures["adherence"]
        if lost > ADHERENCE_LOST:
            lines.append(f"{name}: adherence {lost:.3f} less")
        more = figures["flicker"] / plain[name]["flicker"] - 1
        if abs(more) > FLICKER_MORE:
            lines.append(f"{name}: flicker {more:+.0%}")
    return lines


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the table of a result, for a page."""
    measured = report["measured"]
    yield row(("", "adherence, seen", "held out", "flicker, seen", "held out", "edges, seen", "held out"))
    yield row(["---"] * 7)
    for kind, name in {"float32": "float32, whole decoder", **NAMES}.items():
        if kind in measured:
            seen = measured[kind]["seen"]
            held_out = measured[kind]["held_out"]
            figures = [
                f"{each[what]:.3f}" for what in ("adherence", "flicker", "edges") for each in (seen, held_out)
            ]
            yield row((name, *figures))
    yield ""
    yield f"{report['hardware']['cpu']}, torch {report['versions']['torch']}, commit `{report['commit']}`."


def main() -> None:
    parser = argparse.ArgumentParser(description="What Brook loses in 8 bits.")
    parser.add_argument(
        "--page", action="store_true", help="write the last result into docs/brook.md and measure nothing"
    )
    parser.add_argument("--count", type=int, default=COUNT, help="prompts of each kind")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that judge at once, which share the cores"
    )
    parser.add_argument(
        "--report", default="brook_quality", help="name of the result; NAME-without-bf16 of a slower machine"
    )
    parser.add_argument("--judge", metavar="PRECISION", help="be one of the processes that judge")
    parser.add_argument("--on", metavar="DEVICE", default="cpu", help="where that one streams")
    options = parser.parse_args()
    if options.page:
        write_page("brook_quality", table)
        return
    import torch

    best = "cuda" if torch.cuda.is_available() else "cpu"
    if options.judge:
        print(json.dumps(judge(options.judge, options.on, best, options.count)))
        return
    from benchmarks.report import write_report

    threads = max(1, len(os.sched_getaffinity(0)) // options.jobs)
    with ThreadPoolExecutor(options.jobs) as pool:
        plain = pool.submit(in_fresh_process, kinds_here()[0], "fp32", best, options.count, threads)
        by_kind = {
            kind: pool.submit(in_fresh_process, kind, "auto", "cpu", options.count, threads)
            for kind in kinds_here()
        }
    found: dict[str, Any] = {
        "float32": plain.result(),
        **{kind: future.result() for kind, future in by_kind.items()},
    }
    short = {kind: lines for kind in kinds_here() if (lines := missed(found[kind], found["float32"]))}
    goals = {"adherence_lost": ADHERENCE_LOST, "flicker_more": FLICKER_MORE}
    asked = {"prompts": options.count, "second": SECOND, "float32_on": best}
    write_report(options.report, asked, {**found, "goals": goals, "missed": short})


if __name__ == "__main__":
    main()
