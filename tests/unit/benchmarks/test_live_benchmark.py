"""What the live benchmark calls reached and missed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.live import CROWD, MARGIN, missed, of_people, rounded
from millstream.load.record import LoadRecord
from millstream.load.run import LoadResult

pytestmark = pytest.mark.slow


def good() -> dict[str, Any]:
    seen = {"largest": 2.0}
    people = dict(continuity=1.0, first_frame_s=0.5, control_to_picture_s=seen, lead_and_chunk_s=2.25, unanswered_controls=0)
    kept = dict(errors=[], memory_growth=0.01, device_memory_growth=0.0, left_behind=[])
    return {
        "one_viewer": people,
        "crowd": {**people, "admitted": CROWD, "refused": ["no room"], "refusal_s": 0.01},
        "overhead": {"share": 0.02},
        "connects": kept,
        "scripted_use": dict(kept),
    }


def test_a_good_run_misses_nothing() -> None:
    assert missed(good()) == []


@pytest.mark.parametrize(
    ("part", "changes", "name"),
    [
        ("one_viewer", {"continuity": 0.98}, "one viewer: continuity"),
        ("one_viewer", {"first_frame_s": None}, "one viewer: first frame"),
        ("one_viewer", {"control_to_picture_s": {"largest": 2.3}}, "one viewer: control to picture"),
        ("one_viewer", {"control_to_picture_s": None}, "one viewer: control to picture"),
        ("crowd", {"admitted": 3}, "crowd: admitted"),
        ("crowd", {"refused": []}, "crowd: refusal"),
        ("crowd", {"refusal_s": 0.2}, "crowd: refusal"),
        ("overhead", {"share": 0.06}, "overhead"),
        ("connects", {"memory_growth": 0.03}, "connects: memory"),
        ("scripted_use", {"device_memory_growth": 0.03}, "scripted_use: memory"),
        ("scripted_use", {"left_behind": ["6 tasks are left"]}, "scripted_use: nothing left"),
        ("scripted_use", {"errors": ["bad_state: no"]}, "scripted use: errors"),
    ],
)
def test_each_goal_can_be_missed(part: str, changes: dict[str, Any], name: str) -> None:
    measured = good()
    measured[part] = {**measured[part], **changes}
    assert missed(measured) == [name]


def test_four_fit_at_the_chosen_rate_and_five_do_not() -> None:
    assert CROWD * MARGIN < CROWD < (CROWD + 1) * MARGIN


def test_who_was_refused_does_not_count_against_continuity() -> None:
    refused = LoadRecord(0)
    refused.refused("no room", 0.02)
    result = LoadResult(
        people=(refused.result(0.0),),
        everybody=refused.samples.summaries(),
        server=None,
        connects=None,
        after_connects=None,
    )
    told = of_people(result)
    assert (told["admitted"], told["refused"], told["refusal_s"]) == (0, ["no room"], 0.02)
    assert told["continuity"] == 0, "nobody saw anything: that is no full mark"


def test_figures_keep_the_digits_that_mean_something() -> None:
    assert rounded({"a": 0.123456, "b": {"c": 2.0}, "d": [1]}) == {"a": 0.1235, "b": {"c": 2.0}, "d": [1]}
