"""Traces of strangers: public ones as tables of events, and ones that nobody would write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.event_tables import reduce_trace, write_table, write_trace
from benchmarks.mutated_traces import campaign
from benchmarks.strangers import judgements, strangers, summary
from millstream.profiler.reading import read
from millstream.profiler.rules.findings import ADVICE

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"


def test_every_label_has_a_source_and_a_reason() -> None:
    found = strangers()
    assert len(found) >= 60
    for stranger in found:
        assert stranger.accepted, stranger.name
        assert set(stranger.accepted) <= set(ADVICE), stranger.name
        assert stranger.why, stranger.name
        assert ": " in stranger.source, stranger.name


@pytest.mark.slow
def test_of_public_traces_nine_in_ten_are_named_right_and_none_is_wrong_with_high_confidence() -> None:
    """Those of a few thousand events; `python -m benchmarks.strangers` reads all."""
    small = [each for each in strangers() if each.table.exists() and each.table.stat().st_size < 9000]
    if len(small) < 40:
        pytest.skip("the traces are other people's and not here; benchmarks/strangers.py says how to get them")
    found = summary(list(judgements(small)))
    assert found["right"] >= 0.9, found["wrong"]
    assert found["high_and_wrong"] == 0, found["wrong"]


@pytest.mark.parametrize("name", ["CPU-bound", "compute-bound", "memory-bound"])
def test_a_table_is_judged_as_the_trace_it_was_made_of(tmp_path: Path, name: str) -> None:
    trace = TRACES / f"{name}.json.gz"
    write_table(reduce_trace(trace), tmp_path / "table.json.xz")
    whole = read([trace]).diagnosis.verdict
    reduced = read([write_trace(tmp_path / "table.json.xz", tmp_path / "again.json")]).diagnosis.verdict
    assert (reduced.name, reduced.confidence) == (whole.name, whole.confidence)
    assert reduced.gain == pytest.approx(whole.gain, abs=0.01)


def test_mutated_traces_are_judged_or_refused_in_one_line() -> None:
    outcomes, faults = campaign(60)
    assert not faults, faults
    assert outcomes["judged"], "some are still traces"
    assert outcomes["refused"], "some are not"


def test_shapes_that_are_no_shapes_are_not_counted(tmp_path: Path) -> None:
    """A seed of the mutations: dimensions that are a number."""
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "ts": 0,
        "dur": 9,
        "pid": 1,
        "tid": 1,
        "args": {"Input Dims": 1e300},
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    assert read([path]).diagnosis.verdict.name
