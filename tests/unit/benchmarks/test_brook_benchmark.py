"""Brook's benchmark says what it measured and what was missed."""

from __future__ import annotations

from benchmarks.brook import AT_LEAST, AT_MOST, measure, medians, missed


def test_every_goal_is_measured() -> None:
    found = measure("random", "float32", chunks=1, warm_up=1)
    assert set(AT_MOST) | set(AT_LEAST) < set(found)
    assert all(value > 0 for name, value in found.items() if not name.endswith("_ms"))
    assert {"step_ms", "commit_ms", "decode_ms", "convert_ms"} < set(found)


def test_a_missed_goal_is_named_with_its_figures() -> None:
    met = {"load_seconds": 1.0, "first_frame_seconds": 0.4, "peak_gib": 0.5, "frames_per_second": 40.0}
    assert missed(met) == []
    assert missed({**met, "peak_gib": 2.0}) == ["peak_gib 2, at most 1.5"]
    assert missed({**met, "frames_per_second": 12.0}) == ["frames_per_second 12, at least 24"]


def test_the_figures_are_the_middle_of_the_runs() -> None:
    assert medians([{"peak_gib": 1.0}, {"peak_gib": 9.0}, {"peak_gib": 2.0}]) == {"peak_gib": 2.0}
