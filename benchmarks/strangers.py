"""Is the profiler right about traces that its authors never saw, and does it know when it is not?

    python -m benchmarks.strangers            # right and wrong, by confidence
    python -m benchmarks.strangers --list     # trace by trace

`tests/fixtures/public_traces/labels.json` names public traces, each with its source, what its bottleneck is by reading it, and
why. The traces are other people's and not in this repository: fetch one from its source and put its table of events beside the
labels: `python -m benchmarks.event_tables TRACE tests/fixtures/public_traces/NAME.json.xz`. Those that are there are judged.
Several answers are right where a reader would accept them: a host that launches a little and computes a little.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.event_tables import write_trace
from benchmarks.report import write_report
from millstream.profiler.reading import read
from millstream.profiler.rules.findings import UNEXPLAINED, Finding

FOLDER = Path(__file__).parents[1] / "tests" / "fixtures" / "public_traces"
MAKE = "python -m benchmarks.event_tables TRACE TABLE"
CONFIDENCES = ("high", "medium", "low")


@dataclass(frozen=True, kw_only=True)
class Stranger:
    name: str
    source: str
    accepted: tuple[str, ...]
    """What may be answered; the first is meant."""
    why: str

    @property
    def table(self) -> Path:
        return FOLDER / f"{self.name}.json.xz"

    def judged(self, folder: Path) -> Finding:
        return read([write_trace(self.table, folder / f"{self.name}.json")]).diagnosis.verdict


@dataclass(frozen=True)
class Judgement:
    of: Stranger
    found: Finding

    @property
    def right(self) -> bool:
        return self.found.name in self.of.accepted


def strangers() -> list[Stranger]:
    labels = json.loads((FOLDER / "labels.json").read_text())
    return [Stranger(name=name, **{**label, "accepted": tuple(label["accepted"])}) for name, label in labels.items()]


def judgements(chosen: list[Stranger]) -> Iterator[Judgement]:
    with tempfile.TemporaryDirectory() as folder:
        for stranger in chosen:
            yield Judgement(stranger, stranger.judged(Path(folder)))


def summary(judged: list[Judgement]) -> dict[str, Any]:
    by_confidence = {
        confidence: {
            "right": sum(each.right for each in judged if each.found.confidence == confidence),
            "of": sum(each.found.confidence == confidence for each in judged),
        }
        for confidence in CONFIDENCES
    }
    return {
        "traces": len(judged),
        "named_as_meant": sum(each.found.name == each.of.accepted[0] for each in judged),
        "unexplained_and_right": sum(each.right and each.found.name == UNEXPLAINED for each in judged),
        "right": round(sum(each.right for each in judged) / len(judged), 4),
        "high_and_wrong": by_confidence["high"]["of"] - by_confidence["high"]["right"],
        "by_confidence": by_confidence,
        "wrong": {
            each.of.name: [each.of.accepted[0], each.found.name, each.found.confidence] for each in judged if not each.right
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="trace by trace, and write no result")
    options = parser.parse_args()
    here = [stranger for stranger in strangers() if stranger.table.exists()]
    if not here:
        sys.exit(f"no tables of events are in {FOLDER}; fetch traces that labels.json names, then: {MAKE}")
    judged = list(judgements(here))
    found = summary(judged)
    for each in judged if options.list else ():
        mark = "right" if each.right else "WRONG"
        print(f"{mark} {each.found.confidence:6} {each.found.name:24} {each.of.name}: {each.of.accepted[0]}, {each.of.why}")
    for confidence, counted in found["by_confidence"].items():
        print(f"{confidence}: {counted['right']} right of {counted['of']}")
    if not options.list:
        write_report("strangers", {"goal": "0.90 right, none high and wrong"}, found)


if __name__ == "__main__":
    main()
