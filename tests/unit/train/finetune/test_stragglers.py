from __future__ import annotations

import pytest

from millstream.train.finetune.stragglers import IN_A_ROW, Stragglers


def test_a_rank_is_named_when_it_was_late_several_times_in_a_row() -> None:
    watch = Stragglers()
    for _ in range(IN_A_ROW - 1):
        watch.look([1.0, 1.1, 2.0, 0.9])
        assert not watch.slow
    watch.look([1.0, 1.1, 3.0, 0.9])
    assert watch.slow == {2: pytest.approx(3.0)}
    assert watch.message().startswith("rank 2 (3.0 times) takes much longer")
    watch.look([1.0, 1.1, 1.2, 0.9])
    assert not watch.slow, "it has caught up"


def test_late_now_and_then_is_not_slow() -> None:
    watch = Stragglers()
    for late in range(4 * IN_A_ROW):
        watch.look([3.0 if rank == late % 3 else 1.0 for rank in range(3)])
        assert not watch.slow


def test_of_two_ranks_the_faster_is_the_measure_and_times_of_nothing_name_nobody() -> None:
    watch = Stragglers()
    for _ in range(IN_A_ROW):
        watch.look([2.0, 1.0])
    assert watch.slow == {0: 2.0}
    watch.look([0.0, 0.0])
    assert not watch.slow
