"""What the live benchmark calls reached and missed."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.load.record import LoadRecord
from millstream.load.run import LoadResult
from tests.soak.live import CROWD, MARGIN, missed, of_people, of_rounds, rounded

pytestmark = pytest.mark.slow


def good() -> dict[str, Any]:
    seen = {"largest": 2.0}
    people = dict(
        continuity=1.0,
        first_frame_s=0.5,
        control_to_picture_s=seen,
        lead_and_chunk_s=2.25,
        unanswered_controls=0,
    )
    kept = dict(errors=[], memory_growth=0.01, device_memory_growth=0.0, left_behind=[])
    return {
        "one_viewer": people,
        "crowd": {**people, "admitted": CROWD, "refused": ["no room"], "refusal_s": 0.01},
        "overhead": {"share": 0.02},
        "connects": kept,
        "scripted_use": {**kept, "continuity": 1.0},
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
        ("scripted_use", {"continuity": 0.998}, "scripted use: continuity"),
        ("scripted_use", {"errors": ["bad_state: no"]}, "scripted use: errors"),
    ],
)
def test_each_goal_can_be_missed(part: str, changes: dict[str, Any], name: str) -> None:
    measured = good()
    measured[part] = {**measured[part], **changes}
    assert missed(measured) == [name]


def rounds_at_rest(held: list[int]) -> list[dict[str, Any]]:
    kept = dict(continuity=1.0, misses=0, errors=[], unanswered_controls=0, left_behind=[], memory_growth=0.5)
    return [
        {
            **kept,
            "device_memory_growth": 0.0,
            "memory": {"end": {"resident_bytes": each, "device_bytes": None}},
        }
        for each in held
    ]


def test_what_rests_unevenly_does_not_grow_and_what_climbs_does() -> None:
    assert of_rounds(rounds_at_rest([364, 405, 383, 402, 364, 383, 405, 402]))["memory_growth"] == 0.0
    assert of_rounds(rounds_at_rest([100, 102, 104, 106, 108, 110]))["memory_growth"] == pytest.approx(
        0.0588, abs=1e-3
    )
    assert of_rounds(rounds_at_rest([100, 150]))["memory_growth"] == 0.5, (
        "too few to say more than a reading before and after"
    )


def test_one_bad_round_is_not_made_up_for() -> None:
    rounds = rounds_at_rest([100] * 6)
    rounds[4] |= {"continuity": 0.9, "misses": 3, "errors": ["late"]}
    found = of_rounds(rounds)
    assert (found["continuity"], found["misses"], found["errors"]) == (0.9, 3, ["late"])


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
