"""The confusion matrix of the profiler's diagnoses, on a few seeds."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis import Case, confusion, simulated, summary
from millstream.profiler.rules.findings import Finding
from millstream.profiler.simulated_workloads import WORKLOADS

pytestmark = pytest.mark.slow


def test_a_confusion_matrix_counts_what_was_taken_for_what() -> None:
    def case(expected: str, found: str, confidence: str) -> Case:
        return Case(
            "w", "simulated", expected, Finding(name=found, gain=0.3, evidence=("e",), confidence=confidence)
        )

    cases = [
        case("allocator", "allocator", "high"),
        case("allocator", "straggler", "high"),
        case("straggler", "straggler", "low"),
    ]
    assert confusion(cases) == {"allocator": {"allocator": 1, "straggler": 1}, "straggler": {"straggler": 1}}
    assert [c.confidently_wrong for c in cases] == [False, True, False]


def test_the_matrix_of_all_workloads_meets_its_goals() -> None:
    """Three of its hundreds of seeds; the benchmark writes the whole one."""
    cases = list(simulated(range(3000, 3003)))
    assert {case.workload for case in cases} == {workload.name for workload in WORKLOADS}
    found = summary(cases)
    assert found["right"] >= 0.9
    assert found["confidently_wrong"] == 0
