"""Brook's benchmark says what it measured and what was missed."""

from __future__ import annotations

import pytest

from benchmarks import brook_quality
from benchmarks.brook import AT_MOST, measure, medians, missed, single_runs, table

pytestmark = pytest.mark.slow


def test_every_goal_is_measured() -> None:
    found = measure("random", "fp32", chunks=1, warm_up=1)
    assert {*AT_MOST, "frames_per_second"} < set(found)
    assert all(found[name] > 0 for name in (*AT_MOST, "frames_per_second", "pulse_gflops"))
    assert not found["int8"]
    assert {"step_ms", "commit_ms", "decode_ms", "convert_ms"} < set(found)


def test_a_missed_goal_is_named_with_its_figures() -> None:
    met = {"load_and_first_frame_seconds": 0.8, "peak_gib": 0.5, "frames_per_second": 30.0}
    assert missed("vnni", met) == []
    assert missed("vnni", {**met, "peak_gib": 2.0}) == ["peak_gib 2, at most 1.5"]
    assert missed("amx", met) == ["frames_per_second 30, at least 40"]


def test_quality_that_was_lost_is_named() -> None:
    plain = {"seen": {"adherence": 0.96, "flicker": 1.0}}
    assert brook_quality.missed({"seen": {"adherence": 0.955, "flicker": 1.05}}, plain) == []
    assert brook_quality.missed({"seen": {"adherence": 0.94, "flicker": 1.2}}, plain) == [
        "seen: adherence 0.020 less",
        "seen: flicker +20%",
    ]


def test_the_figures_are_the_middle_of_the_runs() -> None:
    assert medians([{"peak_gib": 1.0}, {"peak_gib": 9.0}, {"peak_gib": 2.0}]) == {"peak_gib": 2.0}


def test_the_page_shows_the_slowest_and_the_quickest_run_and_the_machines_pulse_beside_the_median() -> None:
    runs = [
        {
            "frames_per_second": fps,
            "pulse_gflops": pulse,
            "load_and_first_frame_seconds": 0.5,
            "peak_gib": 0.4,
        }
        for fps, pulse in ((25.2, 140.0), (21.9, 110.0), (24.0, 131.0))
    ]
    report = {
        "hardware": {"cpu": "a CPU"},
        "versions": {"torch": "2"},
        "commit": "abc",
        "measured": {
            "vnni, auto": medians(runs),
            "vnni, fp32": medians(runs),
            "single_runs": {"vnni, auto": single_runs(runs)},
            "goals": {"frames_per_second": {"vnni": 24.0}},
        },
    }
    line = list(table(report))[2]
    assert "**24.0** (21.9 to 25.2)" in line
    assert line.endswith("| 131 |")
    del report["measured"]["single_runs"]
    del report["measured"]["vnni, auto"]["pulse_gflops"]
    assert "| **24.0** | 24 |" in list(table(report))[2], "a result from before the pulse was timed"
