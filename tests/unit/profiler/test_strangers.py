"""Traces of strangers: what was measured of public ones, and ones that nobody would write."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.event_tables import reduce_trace, write_table, write_trace
from benchmarks.mutated_traces import campaign
from benchmarks.strangers import blind_rounds, judged, kept_facts, strangers, summarise, summary
from benchmarks.workloads import WORKLOADS, Workload
from millstream.profiler import rules
from millstream.profiler.reading import read
from millstream.profiler.rules.diagnosis import diagnose
from millstream.profiler.rules.facts import RunFacts
from millstream.profiler.rules.findings import ADVICE

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"


def test_every_label_has_a_source_and_a_reason() -> None:
    found = strangers()
    assert len(found) >= 60
    for name, stranger in found.items():
        assert stranger.accepted, name
        assert set(stranger.accepted) <= set(ADVICE), name
        assert stranger.why, name
        assert ": " in stranger.source, name


def test_of_public_traces_nine_in_ten_are_named_right_and_none_is_wrong_with_high_confidence() -> None:
    """All of them, by what was measured of each."""
    found = summary(judged(kept_facts(), strangers()))
    assert found["traces"] == len(kept_facts()) >= 60
    assert found["right"] >= 0.9, found["wrong"]
    assert found["high_and_wrong"] == 0, found["wrong"]


def test_what_was_said_first_of_traces_that_were_labelled_blind_is_kept() -> None:
    labels = strangers()
    for found in blind_rounds(labels):
        assert found["traces"] >= 10
        assert found["right"] == sum(counted["right"] for counted in found["by_confidence"].values()) < found["traces"]
    assert len({each.source.split(":")[0] for each in labels.values() if each.blind}) >= 20, "of many projects"


def test_facts_hold_numbers_and_words_of_ours_and_no_names_of_other_peoples() -> None:
    words: set[str] = set()

    def walk(value: object) -> None:
        if isinstance(value, str):
            words.add(value)
        for each in value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else ():
            walk(each)

    walk([msgspec.to_builtins(facts) for facts in kept_facts().values()])
    assert words <= {"", "workers", "process", "stacks", "mtia_ccp_events", "mtia_runtime", "hpu_op", "xpu_runtime"}


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS[::3], ids=lambda workload: workload.name)
def test_a_run_is_judged_from_its_facts_as_from_its_traces(tmp_path: Path, workload: Workload) -> None:
    """Written and read again, of one rank and of several; every finding and every line of evidence."""
    reading = read(workload.write(tmp_path, 2000))
    facts = msgspec.json.decode(msgspec.json.encode(reading.facts), type=RunFacts)
    assert facts == reading.facts
    assert diagnose(facts) == reading.diagnosis


@pytest.mark.parametrize("name", ["CPU-bound", "synchronisation"])
def test_a_summary_is_judged_as_the_trace_it_was_made_of(name: str) -> None:
    trace = TRACES / f"{name}.json.gz"
    kept, whole = diagnose(summarise(trace)), read([trace]).diagnosis
    assert [finding.name for finding in kept.others] == [finding.name for finding in whole.others]
    assert kept.verdict.gain == pytest.approx(whole.verdict.gain, rel=1e-4)


def test_the_rules_know_no_trace() -> None:
    """What they look at is in the facts, so that facts are all that has to be kept of a trace."""
    assert rules.__file__ is not None
    for path in Path(rules.__file__).parent.glob("*.py"):
        imported = [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        ours = [module for module in imported if module is not None and module.startswith("millstream")]
        assert all(module.startswith("millstream.profiler.rules") for module in ours), path.name


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
