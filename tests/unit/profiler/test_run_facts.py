"""A run is judged by its facts alone, and traces that no program would write are judged or refused."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import msgspec
import pytest

from millstream.profiler import rules
from millstream.profiler.reading import read
from millstream.profiler.rules.diagnosis import diagnose
from millstream.profiler.rules.facts import RunFacts
from millstream.profiler.simulated_workloads import WORKLOADS, SimulatedWorkload
from tests.soak.mutated_traces import campaign


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS[::3], ids=lambda workload: workload.name)
def test_a_run_is_judged_from_its_facts_as_from_its_traces(
    tmp_path: Path, workload: SimulatedWorkload
) -> None:
    """Written and read again, of one rank and of several; every finding and every line of evidence."""
    reading = read(workload.write(tmp_path, 2000))
    facts = msgspec.json.decode(msgspec.json.encode(reading.facts), type=RunFacts)
    assert facts == reading.facts
    assert diagnose(facts) == reading.diagnosis


def test_the_rules_know_no_trace() -> None:
    """What they look at is in the facts, so that facts are all that has to be kept of a trace."""
    assert rules.__file__ is not None
    for path in Path(rules.__file__).parent.glob("*.py"):
        imported = [
            node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        ours = [module for module in imported if module is not None and module.startswith("millstream")]
        assert all(module.startswith("millstream.profiler.rules") for module in ours), path.name


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
