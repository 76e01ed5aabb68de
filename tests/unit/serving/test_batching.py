"""Batch sizes are chosen by measured throughput, and learning them costs a bounded share of the turns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.errors import ConfigError
from millstream.serving.batching import BatchPolicy, BatchTimes


def always(size: int, seconds: float) -> bool:
    return True


def measured(seconds: dict[int, float], policy: BatchPolicy | None = None) -> BatchTimes:
    times = BatchTimes(policy or BatchPolicy())
    for size, each in seconds.items():
        for _ in range(3):
            times.add("k", size, each)
    return times


def test_nothing_is_batched_before_a_single_run_is_measured() -> None:
    assert BatchTimes(BatchPolicy()).choose("k", 4, always) == 1


def test_the_size_with_the_best_measured_throughput_is_chosen_among_those_available() -> None:
    times = measured({1: 0.3, 2: 0.5, 4: 0.8, 8: 2.0}, BatchPolicy(max_size=8))
    assert times.choose("k", 8, always) == 4
    assert times.choose("k", 3, always) == 2
    assert times.choose("k", 8, lambda size, seconds: seconds < 0.55) == 2


def test_sizes_are_powers_of_two_and_the_largest_allowed() -> None:
    times = BatchTimes(BatchPolicy(max_size=6, explore_every=1))
    tried = set()
    for _ in range(40):
        size = times.choose("k", 6, always)
        times.add("k", size, size**0.9)
        tried.add(size)
    assert tried == {1, 2, 4, 6}


def test_a_size_is_not_tried_where_the_next_smaller_one_does_not_pay() -> None:
    times = measured({1: 0.3, 2: 0.6}, BatchPolicy(max_size=8, explore_every=1))
    assert [times.choose("k", 8, always) for _ in range(20)] == [1] * 20


def test_a_size_that_is_new_is_counted_with_what_new_ones_have_cost_beyond_their_time() -> None:
    times = measured({1: 0.3}, BatchPolicy(explore_every=1))
    times.one_off_s = 0.5
    assert times.choose("k", 2, lambda size, seconds: seconds < 1.09) == 1
    assert times.choose("k", 2, lambda size, seconds: seconds < 1.11) == 2


def test_a_gain_within_the_noise_is_not_worth_the_latency() -> None:
    assert measured({1: 0.3, 2: 0.59}).choose("k", 2, always) == 1


def test_one_slow_warm_up_does_not_count() -> None:
    times = measured({1: 0.3})
    for seconds in (9.0, 0.4, 0.4):
        times.add("k", 2, seconds)
    assert times.choose("k", 2, always) == 2


def test_a_size_is_tried_again_after_long_and_the_new_time_counts() -> None:
    times = measured({1: 0.3, 2: 0.9}, BatchPolicy(explore_every=4, refresh_every=20))
    chosen = []
    for _ in range(200):
        size = times.choose("k", 2, always)
        times.add("k", size, {1: 0.3, 2: 0.4}[size])  # the device got better at pairs
        chosen.append(size)
    assert chosen[:16].count(2) == 0
    assert chosen[-20:].count(2) > 15


def test_a_size_nobody_can_afford_is_not_tried() -> None:
    times = measured({1: 0.3}, BatchPolicy(explore_every=1, refresh_every=1000))
    asked: list[tuple[int, float]] = []
    assert times.choose("k", 3, lambda size, seconds: bool(asked.append((size, seconds)))) == 1
    assert asked == [(2, pytest.approx(0.6))]  # unknown, so taken as two single runs


def test_keys_are_bounded_and_the_one_used_longest_ago_goes() -> None:
    times = BatchTimes(BatchPolicy(max_keys=2))
    for key in ("a", "b", "a", "c"):
        times.add(key, 1, 0.1)
    assert [times.seconds(key, 1) for key in ("a", "b", "c")] == [0.1, None, 0.1]


@given(st.lists(st.floats(1.0, 3.0), min_size=4, max_size=4), st.integers(4, 64), st.integers(64, 300))
@settings(max_examples=30)
def test_learning_takes_no_more_than_its_share_of_turns(
    penalties: list[float], explore_every: int, refresh_every: int
) -> None:
    """On a device where no batch pays, every batch was a trial."""
    times = BatchTimes(BatchPolicy(explore_every=explore_every, refresh_every=refresh_every))
    trials = 0
    for _ in range(300):
        size = times.choose("k", 4, always)
        times.add("k", size, 0.1 * size * penalties[size - 1] if size > 1 else 0.1)
        trials += size > 1
    assert 0 < trials <= 300 / explore_every


@pytest.mark.parametrize("wrong", [dict(max_size=0), dict(trials=6), dict(gain=0.9), dict(explore_every=0)])
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        BatchPolicy(**wrong)  # type: ignore[arg-type]
