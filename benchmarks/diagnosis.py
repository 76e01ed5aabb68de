"""Does the profiler name the bottleneck that was put there? A confusion matrix over workloads whose bound is
known.

    python -m benchmarks.diagnosis                      # some minutes; on cores that nobody else uses
    python -m benchmarks.diagnosis --seeds 2 --runs 0   # a look, without what really runs; writes no result

Simulated traces of GPUs (`workloads.py`), with sizes, noise and distractors by seed; and workloads that
really run on this processor (`real_workloads.py`), where of eight captures the shortest is judged, because
others use this machine. The goals: at least 90% right, none confidently wrong.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.real_workloads import ALONE, TOGETHER, capture_quickest, capture_together
from benchmarks.report import write_report
from millstream.commands.plan.calibrate import calibrate
from millstream.profiler.reading import read
from millstream.profiler.rules.findings import Finding
from millstream.profiler.simulated_workloads import WORKLOADS

FIRST_SEED = 5000
SEEDS = 50
"""Seeds of each simulated workload. Seeds below `FIRST_SEED` were looked at while the rules were written."""
GOAL = "0.90 right, none confidently wrong"
RUNS = 3
"""Runs of each real workload."""


@dataclass(frozen=True)
class Case:
    workload: str
    kind: str
    """simulated or real."""
    expected: str
    found: Finding

    @property
    def right(self) -> bool:
        return self.found.name == self.expected

    @property
    def confidently_wrong(self) -> bool:
        return not self.right and self.found.confidence == "high"


def simulated(seeds: range) -> Iterator[Case]:
    for workload in WORKLOADS:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                verdict = read(workload.write(Path(folder), seed)).diagnosis.verdict
            yield Case(workload.name, "simulated", workload.expected, verdict)


def real(runs: int) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as text:
        here = calibrate(device_name="cpu", out=Path(text) / "profile.json")
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            for name, (expected, step) in ALONE.items():
                path = capture_quickest(step(folder), folder / "trace.json")
                yield Case(name, "real", expected, read([path], here=here).diagnosis.verdict)
            for name, paths in capture_together(folder).items():
                yield Case(name, "real", TOGETHER[name][0], read(paths, here=here).diagnosis.verdict)


def confusion(cases: list[Case]) -> dict[str, dict[str, int]]:
    """By what it was, then by what it was taken for."""
    counted = Counter((case.expected, case.found.name) for case in cases)
    return {
        expected: {found: number for (was, found), number in sorted(counted.items()) if was == expected}
        for expected in sorted({case.expected for case in cases})
    }


def summary(cases: list[Case]) -> dict[str, Any]:
    return {
        "cases": len(cases),
        "right": round(sum(case.right for case in cases) / len(cases), 4),
        "confidently_wrong": sum(case.confidently_wrong for case in cases),
        "confusion": confusion(cases),
        "by_workload": {
            name: {
                "expected": next(case.expected for case in cases if case.workload == name),
                "right": sum(case.right for case in cases if case.workload == name),
                "of": sum(case.workload == name for case in cases),
                "confidence": dict(Counter(case.found.confidence for case in cases if case.workload == name)),
            }
            for name in dict.fromkeys(case.workload for case in cases)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each simulated workload")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each real workload")
    options = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    pretended = list(simulated(seeds))
    happened = list(real(options.runs)) if options.runs else []
    together = summary([*pretended, *happened])
    print(
        f"{together['right']:.1%} of {together['cases']} right, {together['confidently_wrong']} confidently wrong"
    )
    if (options.seeds, options.runs) != (SEEDS, RUNS):
        return
    write_report(
        "diagnosis",
        {"seeds": [seeds[0], seeds[-1]], "runs": RUNS, "threads": torch.get_num_threads(), "goal": GOAL},
        {
            "right": together["right"],
            "confidently_wrong": together["confidently_wrong"],
            "simulated": summary(pretended),
            "real": summary(happened),
        },
    )


if __name__ == "__main__":
    main()
