"""Brook from nothing by its recipe, on ranks that share the batches: where the time goes, and what the judge
says of it.

    python -m benchmarks.brook_recipe --out FOLDER         # half an hour on one data-centre GPU; a run that was begun goes on
    python -m benchmarks.brook_recipe --out FOLDER --judge # judges a trained one again, and writes the result
    python -m benchmarks.brook_recipe --page               # writes the last result into docs/brook.md
    python -m benchmarks.brook_recipe --out FOLDER --recipe millstream/train/recipes/brook-walk.toml --minutes 9

Training is `millstream train brook`, under torchrun where more ranks than one are asked for; what this program
does not know goes to it (`--set pool.walks=2000`). With `--minutes` it is stopped and saved after so many, and the
same command goes on; once it is over, `--judge` in place of `--minutes` judges. A Brook that learnt keys is walked in
as well (`benchmarks.walk`).

Its judge is the
one that judged the Brook of docs/training, and the same prompts, so that the two can be compared: with 192
clips a share is good to two points.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pages import report_of, row, write_between
from benchmarks.report import RESULTS, write_report
from millstream.models.conditions.files import conditions_in

DOCS = RESULTS.parents[1] / "docs"
MINUTES = 30.0
POINTS = 3.0
"""Limits: minutes of all training, and points by which the mean of six attributes may be below the earlier
Brook's."""
CLIPS = 192
SECONDS = "2,10,30"
WITHIN = (
    "rendering for the VAE",
    "rendering",
    "rendering of walks",
    "rendering for the judge of motion",
)
"""Ledger entries whose time is also counted in the stage that first needed them."""


def train(folder: Path, ranks: int, more: list[str], minutes: float | None = None) -> bool:
    """Train to the end, or for so many minutes; return whether it is the end."""
    launch = [sys.executable]
    if ranks > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    asked = [*launch, "-m", "millstream", "train", "brook", "--out", str(folder), *more]
    with subprocess.Popen(asked) as training:
        try:
            code = training.wait(None if minutes is None else 60 * minutes)
        except subprocess.TimeoutExpired:
            training.send_signal(signal.SIGINT)  # it ends its step and saves; what is rendered is kept
            training.wait()
            return False
    if code:
        raise SystemExit(code)
    return True


def walk(folder: Path) -> None:
    weights = folder / "brook.safetensors"
    if conditions_in(weights) is not None:
        subprocess.run([sys.executable, "-m", "benchmarks.walk", "--weights", str(weights)], check=True)


def judge(folder: Path) -> None:
    asked = [
        "--count",
        str(CLIPS),
        "--seconds",
        SECONDS,
        "--response-pairs",
        "0",
        "--out",
        str(folder / "eval.json"),
    ]
    weights = ["--weights", str(folder / "brook.safetensors")]
    subprocess.run([sys.executable, "-m", "millstream", "train", "eval", *weights, *asked], check=True)


def read_ledger(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def seconds_of(ledger: list[dict[str, Any]]) -> dict[str, float]:
    """Sum the seconds of each stage over all processes of the run."""
    total: dict[str, float] = {}
    for line in ledger:
        total[line["what"]] = round(total.get(line["what"], 0.0) + line["seconds"], 2)
    return total


def minutes_of(seconds: dict[str, float]) -> float:
    return sum(each for what, each in seconds.items() if what not in WITHIN) / 60


def means(judged: dict[str, Any]) -> dict[str, float]:
    """Return the mean of six attributes by prompts and moment: `seen, 2 s`."""
    return {
        f"{prompts['prompts']}, {moment['second']:g} s": round(moment["mean"], 4)
        for prompts in judged["adherence"]
        for moment in prompts["moments"]
    }


def missed(seconds: dict[str, float], found: dict[str, float], before: dict[str, float]) -> list[str]:
    minutes = minutes_of(seconds)
    lines = [f"trained in {minutes:.1f} min, at most {MINUTES:g}"] if minutes > MINUTES else []
    lost = {name: 100 * (before[name] - mean) for name, mean in found.items()}
    return lines + [f"{name}: {points:.1f} points less" for name, points in lost.items() if points > POINTS]


def report(folder: Path) -> dict[str, Any]:
    seconds = seconds_of(read_ledger(folder))
    found = means(json.loads((folder / "eval.json").read_text()))
    earlier = means(json.loads((DOCS / "training" / "eval.json").read_text()))
    before = {name: earlier[name] for name in found}
    return {
        "seconds": seconds,
        "minutes": round(minutes_of(seconds), 2),
        "means": found,
        "means_before": before,
        "missed": missed(seconds, found, before),
    }


def table(result: dict[str, Any]) -> Iterator[str]:
    measured = result["measured"]
    ranks = result["configuration"]["ranks"]
    yield (
        f"Ranks: {ranks}, on {result['hardware'].get('gpu') or result['hardware']['cpu']}, commit "
        f"`{result['commit']}`:"
    )
    yield ""
    yield row(("stage", "seconds"))
    yield row(("---", "---"))
    for what, seconds in measured["seconds"].items():
        yield row(
            (f"{what}, within the stage that asked first" if what in WITHIN else what, f"{seconds:.0f}")
        )
    yield row(("all", f"**{measured['minutes']:.1f} min**"))
    yield ""
    yield row(("mean of six attributes", *measured["means"]))
    yield row(["---"] * (1 + len(measured["means"])))
    yield row(("this one", *(f"{mean:.3f}" for mean in measured["means"].values())))
    yield row(("the one above", *(f"{mean:.3f}" for mean in measured["means_before"].values())))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Brook from nothing by its recipe: time, and what the judge says of it."
    )
    parser.add_argument("--out", type=Path, default=Path("out/brook-recipe"), help="folder of the run")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--judge", action="store_true", help="train nothing: the run is whole")
    parser.add_argument(
        "--page", action="store_true", help="write the last result into docs/brook.md and do nothing else"
    )
    parser.add_argument("--recipe", type=Path, help="another than the one that ships for Brook")
    parser.add_argument("--minutes", type=float, help="stop training after so many; the same command goes on")
    options, more = parser.parse_known_args()
    if options.minutes is not None and options.ranks > 1:
        parser.error("--minutes stops one rank; stop more with Ctrl-C")
    if options.page:
        write_between(DOCS / "brook.md", "benchmarks.brook_recipe", table(report_of("brook_recipe")))
        return
    if options.judge and more:
        parser.error(f"nothing is trained, so {' '.join(more)} means nothing")
    recipe = [] if options.recipe is None else ["--recipe", str(options.recipe)]
    if not options.judge:
        is_over = train(options.out, options.ranks, [*recipe, *more], options.minutes)
        if not is_over:
            print(f"stopped after {options.minutes:g} minutes, and saved; the same command goes on")
            return
        if options.minutes is not None:  # who counts minutes would not have the judge stopped either
            print("trained to the end; --judge in place of --minutes judges it")
            return
    judge(options.out)
    ranks = ", ".join(sorted({str(line["ranks"]) for line in read_ledger(options.out)}))
    asked = {"ranks": ranks, "clips": CLIPS, "seconds": SECONDS}
    if options.recipe is None:
        write_report("brook_recipe", asked, report(options.out))
    else:
        named = f"brook_recipe-{options.recipe.stem}"
        write_report(named, asked | {"recipe": options.recipe.name, "changed": more}, report(options.out))
    walk(options.out)


if __name__ == "__main__":
    main()
