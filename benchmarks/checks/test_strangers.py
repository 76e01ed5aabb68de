"""Traces of strangers: what was measured of public ones, and ones that nobody would write."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.event_tables import reduce_trace, write_table, write_trace
from benchmarks.strangers import blind_rounds, judged, kept_facts, strangers, summarise, summary
from millstream.profiler.reading import read
from millstream.profiler.rules.diagnosis import diagnose
from millstream.profiler.rules.findings import ADVICE

TRACES = Path(__file__).parents[2] / "tests" / "fixtures" / "traces"


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
        assert (
            found["right"]
            == sum(counted["right"] for counted in found["by_confidence"].values())
            < found["traces"]
        )
    assert len({each.source.split(":")[0] for each in labels.values() if each.blind}) >= 20, (
        "of many projects"
    )


def test_facts_hold_numbers_and_words_of_ours_and_no_names_of_other_peoples() -> None:
    words: set[str] = set()

    def walk(value: object) -> None:
        if isinstance(value, str):
            words.add(value)
        for each in (
            value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else ()
        ):
            walk(each)

    walk([msgspec.to_builtins(facts) for facts in kept_facts().values()])
    assert words <= {
        "",
        "workers",
        "process",
        "stacks",
        "mtia_ccp_events",
        "mtia_runtime",
        "hpu_op",
        "xpu_runtime",
    }


@pytest.mark.parametrize("name", ["CPU-bound", "synchronisation"])
def test_a_summary_is_judged_as_the_trace_it_was_made_of(name: str) -> None:
    trace = TRACES / f"{name}.json.gz"
    kept = diagnose(summarise(trace))
    whole = read([trace]).diagnosis
    assert [finding.name for finding in kept.others] == [finding.name for finding in whole.others]
    assert kept.verdict.gain == pytest.approx(whole.verdict.gain, rel=1e-4)


@pytest.mark.parametrize("name", ["CPU-bound", "compute-bound", "memory-bound"])
def test_a_table_is_judged_as_the_trace_it_was_made_of(tmp_path: Path, name: str) -> None:
    trace = TRACES / f"{name}.json.gz"
    write_table(reduce_trace(trace), tmp_path / "table.json.xz")
    whole = read([trace]).diagnosis.verdict
    reduced = read([write_trace(tmp_path / "table.json.xz", tmp_path / "again.json")]).diagnosis.verdict
    assert (reduced.name, reduced.confidence) == (whole.name, whole.confidence)
    assert reduced.gain == pytest.approx(whole.gain, abs=0.01)
