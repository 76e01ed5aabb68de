"""Traces of an H200: one for each bottleneck that was put there and named by it, as
`tests/gpu/test_profile.py` makes them, and one chunk of `profile run --model wan2.1-t2v-1.3b --size 480x832
--window 9 --fast on`, whose calls are CUDA graphs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from millstream.profiler.reading import Reading, read

FOLDER = Path(__file__).parents[2] / "fixtures" / "traces"


@pytest.mark.parametrize("bound", ["compute-bound", "memory-bound", "launch-bound", "CPU-bound"])
def test_the_bottleneck_of_a_real_gpu_trace_is_named(bound: str) -> None:
    verdict = read([FOLDER / f"{bound}.json.gz"]).diagnosis.verdict
    assert (verdict.name, verdict.confidence) == (bound, "high"), verdict


def test_a_host_that_waits_a_little_and_launches_a_little_is_not_called_either_with_confidence() -> None:
    """Under the profiler its launches are slow enough to be as much in the way as the waits that were put
    there."""
    diagnosis = read([FOLDER / "synchronisation.json.gz"]).diagnosis
    assert diagnosis.verdict.confidence == "low"
    assert {finding.name for finding in (diagnosis.verdict, *diagnosis.others[:1])} == {
        "launch-bound",
        "synchronisation",
    }


def fast_stream(folder: Path, about: dict[str, Any]) -> Reading:
    """The same events in a trace that says other things of itself."""
    record = json.loads(gzip.decompress((FOLDER / "fast-stream.json.gz").read_bytes()))
    path = folder / "changed.json"
    path.write_text(json.dumps({**record, "millstream": about}))
    return read([path])


def test_a_stream_of_recorded_calls_is_known_by_what_its_phases_must_compute() -> None:
    found = read([FOLDER / "fast-stream.json.gz"])
    (roof,), verdict = found.roofs, found.diagnosis.verdict
    assert (verdict.name, verdict.confidence) == ("compute-bound", "medium"), verdict
    assert 0.1 < verdict.gain < 0.25
    reached = {phase.name: phase.reached for phase in roof.phases}
    assert set(reached) == {"step", "commit", "decode"}
    assert reached["step"] == pytest.approx(reached["commit"], abs=0.03), (
        "the same call, but for its last layer"
    )
    assert all(0.75 < share < 1.0 for share in reached.values()), reached
    assert any(line.startswith("of the measured peak: step 8") for line in verdict.evidence), verdict.evidence
    assert roof.counted_ms + roof.shaped_ms == pytest.approx(roof.work_ms, rel=0.01)


def test_recorded_calls_of_nobody_knows_what_are_not_explained_and_it_is_said_why(tmp_path: Path) -> None:
    verdict = fast_stream(tmp_path, {}).diagnosis.verdict
    assert (verdict.name, verdict.confidence, verdict.gain) == ("unexplained", "low", 0.0)
    assert verdict.advice == "CUDA graphs carry no shapes: record once without graphs"


def test_a_model_that_would_have_passed_every_ceiling_was_not_the_one_that_ran(tmp_path: Path) -> None:
    ours = read([FOLDER / "fast-stream.json.gz"]).group.ranks[0].trace.ours
    found = fast_stream(tmp_path, {**ours, "model": "wan2.1-t2v-14b"})
    assert {phase.name for phase in found.roofs[0].phases} == {"decode"}, "both have the same VAE"
    assert found.diagnosis.verdict.name == "unexplained"
