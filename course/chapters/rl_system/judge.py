"""Chapter 14, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType

from course.chapters.rl_system.placements import apart_s
from millstream.planner.training import Sharding, training_state


def judge_no_other_number_of_writers_is_better(answer: ModuleType) -> None:
    for write, learn, devices in ((300.0, 100.0, 16), (1.0, 9.0, 4), (5.0, 5.0, 2), (70.0, 30.0, 10)):
        found = answer.best_writers(write, learn, devices)
        times = {
            writers: apart_s(write, learn, devices, writers, is_late=True) for writers in range(1, devices)
        }
        assert found in times, f"{found} of {devices} devices"
        assert times[found] == min(times.values()), (
            f"{found} of {devices}: {times[found]} s, {min(times.values())} can be had"
        )
        assert all(times[each] > times[found] for each in range(1, found)), f"fewer than {found} would do"


def judge_state_is_that_of_the_planner(answer: ModuleType) -> None:
    for billions, learning, answering, shards in ((7, 2, 2, 1), (7, 2, 2, 16), (70, 1, 1, 64)):
        sharding = Sharding(zero=3, shards=shards)
        learns, answers = (
            training_state(billions * 10**9, sharding, trained=trained).total for trained in (None, 0)
        )
        expected = (learning * learns + answering * answers) / 1e9
        found = answer.state_gb(billions, learning, answering, shards)
        assert abs(found - expected) < 1e-6 * expected, (
            f"{billions}B over {shards}: {found}, the planner has {expected}"
        )
