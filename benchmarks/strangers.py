"""Is the profiler right about traces that its authors never saw, and does it know when it is not?

    python -m benchmarks.strangers                       # right and wrong, by confidence
    python -m benchmarks.strangers --list                # trace by trace
    python -m benchmarks.strangers --summarise FOLDER    # first measure anew the traces that are in FOLDER

`tests/fixtures/public_traces/labels.json` names public traces, each with its source, what its bottleneck is
by reading it, and why. The traces are other people's and not in this repository. What was measured of them
is: `facts.json` beside the labels, the numbers that the rules judge by
(`millstream/profiler/rules/facts.py`). After a change of what is measured, fetch traces from their sources,
name them NAME.json, .json.gz or .sqlite (or NAME.json.xz, a table of `benchmarks/event_tables.py`), and
summarise. Several answers are right where a reader would accept them: a host that launches a little and
computes a little. Labels with `blind` were given before the profiler had seen the trace, and keep what it
said then.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.event_tables import write_trace
from benchmarks.report import write_report
from millstream.profiler.reading import read
from millstream.profiler.rules.diagnosis import diagnose
from millstream.profiler.rules.facts import RunFacts
from millstream.profiler.rules.findings import UNEXPLAINED

FOLDER = Path(__file__).parents[1] / "tests" / "fixtures" / "public_traces"
LABELS = FOLDER / "labels.json"
FACTS = FOLDER / "facts.json"
CONFIDENCES = ("high", "medium", "low")
DIGITS = 6
"""Significant digits of a number that is kept."""


@dataclass(frozen=True, kw_only=True)
class BlindTest:
    """The first time that the profiler was asked, after the label was given."""

    round: int
    """Rules were mended after each."""
    accepted: tuple[str, ...]
    found: str
    confidence: str


@dataclass(frozen=True, kw_only=True)
class Stranger:
    source: str
    accepted: tuple[str, ...]
    """Answers that count as right; the first is the intended one."""
    why: str
    blind: BlindTest | None = None


@dataclass(frozen=True)
class Judgement:
    accepted: tuple[str, ...]
    found: str
    confidence: str

    @property
    def right(self) -> bool:
        return self.found in self.accepted


def strangers() -> dict[str, Stranger]:
    return msgspec.json.decode(LABELS.read_bytes(), type=dict[str, Stranger])


def kept_facts() -> dict[str, RunFacts]:
    return msgspec.json.decode(FACTS.read_bytes(), type=dict[str, RunFacts])


def judged(facts: dict[str, RunFacts], labels: dict[str, Stranger]) -> dict[str, Judgement]:
    verdicts = {name: diagnose(facts[name]).verdict for name in labels}
    return {
        name: Judgement(labels[name].accepted, found.name, found.confidence)
        for name, found in verdicts.items()
    }


def by_confidence(judgements: Iterable[Judgement]) -> dict[str, dict[str, int]]:
    found = list(judgements)
    return {
        confidence: {
            "right": sum(each.right for each in found if each.confidence == confidence),
            "of": sum(each.confidence == confidence for each in found),
        }
        for confidence in CONFIDENCES
    }


def summary(judgements: dict[str, Judgement]) -> dict[str, Any]:
    wrong = {name: each for name, each in judgements.items() if not each.right}
    return {
        "traces": len(judgements),
        "named_as_meant": sum(each.found == each.accepted[0] for each in judgements.values()),
        "unexplained_and_right": sum(
            each.right and each.found == UNEXPLAINED for each in judgements.values()
        ),
        "right": round(1 - len(wrong) / len(judgements), 4),
        "high_and_wrong": sum(each.confidence == "high" for each in wrong.values()),
        "by_confidence": by_confidence(judgements.values()),
        "wrong": {name: [each.accepted[0], each.found, each.confidence] for name, each in wrong.items()},
    }


def blind_rounds(labels: dict[str, Stranger]) -> list[dict[str, Any]]:
    """Summarise the first judgements of traces that were labelled before they were judged, by round."""
    tests = [each.blind for each in labels.values() if each.blind is not None]
    found = []
    for number in sorted({test.round for test in tests}):
        said = [
            Judgement(test.accepted, test.found, test.confidence) for test in tests if test.round == number
        ]
        found.append(
            {
                "traces": len(said),
                "right": sum(each.right for each in said),
                "by_confidence": by_confidence(said),
            }
        )
    return found


def mostly(facts: RunFacts) -> str:
    """The kernels that take longest, by what they are."""
    spent = {name: each.ms for rank in facts.ranks if rank.work for name, each in rank.work.classes.items()}
    longest = max(spent, key=lambda name: spent[name], default="")
    return (
        f"{longest} {spent[longest] / (sum(spent.values()) or 1.0):.0%} of the work" if longest else "no work"
    )


def summarise(trace: Path) -> RunFacts:
    """Return the facts of a trace that the rules read, rounded and without the one name that is not ours.
    Their verdict must equal the trace's."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_trace(trace, Path(folder) / "trace.json") if trace.suffix == ".xz" else trace
        reading = read([path])
    ranks = tuple(replace(rank, host=replace(rank.host, prepares="")) for rank in reading.facts.ranks)
    kept = msgspec.convert(_rounded(msgspec.to_builtins(replace(reading.facts, ranks=ranks))), RunFacts)
    before = reading.diagnosis.verdict
    after = diagnose(kept).verdict
    assert (before.name, before.confidence) == (after.name, after.confidence), (
        f"{trace}: {before}, and then {after}"
    )
    return kept


def write_facts(folder: Path) -> None:
    """Write the facts of the traces in the folder; of other traces, keep the stored facts."""
    there = {name: path for name in strangers() for path in folder.glob(f"{name}.[js]*")}
    facts = (kept_facts() if FACTS.exists() else {}) | {name: summarise(path) for name, path in there.items()}
    lines = [f"{json.dumps(name)}:{msgspec.json.encode(facts[name]).decode()}" for name in sorted(facts)]
    FACTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"measured {len(there)} of {len(strangers())} traces anew")


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="trace by trace, and write no result")
    parser.add_argument(
        "--summarise", type=Path, metavar="FOLDER", help="traces or tables of events by their labels' names"
    )
    options = parser.parse_args()
    if options.summarise is not None:
        write_facts(options.summarise)
    labels = strangers()
    facts = kept_facts()
    judgements = judged(facts, labels)
    for name, each in judgements.items() if options.list else ():
        mark = "right" if each.right else "WRONG"
        print(
            f"{mark} {each.confidence:6} {each.found:24} {name}: {each.accepted[0]}, {labels[name].why}; "
            f"{mostly(facts[name])}"
        )
    if not options.list:
        measured = {**summary(judgements), "blind_rounds": blind_rounds(labels)}
        write_report("strangers", {"goal": "0.90 right, none high and wrong"}, measured)


if __name__ == "__main__":
    main()
