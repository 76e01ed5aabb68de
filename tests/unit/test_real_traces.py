"""Traces of an H200, one for each bottleneck that was put there and named by it, as `tests/gpu/test_profile.py` makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.profiler.reading import read

FOLDER = Path(__file__).parents[1] / "fixtures" / "traces"


@pytest.mark.parametrize("bound", ["compute-bound", "memory-bound", "launch-bound", "CPU-bound"])
def test_the_bottleneck_of_a_real_gpu_trace_is_named(bound: str) -> None:
    verdict = read([FOLDER / f"{bound}.json.gz"]).diagnosis.verdict
    assert (verdict.name, verdict.confidence) == (bound, "high"), verdict


def test_a_host_that_waits_a_little_and_launches_a_little_is_not_called_either_with_confidence() -> None:
    """Under the profiler its launches are slow enough to be as much in the way as the waits that were put there."""
    diagnosis = read([FOLDER / "synchronisation.json.gz"]).diagnosis
    assert diagnosis.verdict.confidence == "low"
    assert {finding.name for finding in (diagnosis.verdict, *diagnosis.others[:1])} == {"launch-bound", "synchronisation"}
