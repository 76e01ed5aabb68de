from __future__ import annotations

import math

import pytest

from millstream.train.finetune.guard import ENOUGH, REMEMBERED, SpikeGuard


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_what_is_no_number_is_never_followed(norm: float) -> None:
    guard = SpikeGuard(0)
    assert guard.may_step(1e30)
    assert not guard.may_step(norm)
    assert not guard.may_step(norm)
    assert guard.in_a_row == 2
    assert guard.may_step(1.0)
    assert guard.in_a_row == 0


def test_what_was_usual_is_known_after_a_resume() -> None:
    first = SpikeGuard(3.0)
    second = SpikeGuard(3.0)
    for number in range(REMEMBERED + 5):
        first.may_step(1.0 + number / 100)
    first.may_step(math.nan)
    second.load_state(first.state())
    assert second.in_a_row == 1
    assert not second.may_step(8.0)
    assert second.state()["norms"].tolist() == first.state()["norms"].tolist()


def test_a_spike_is_judged_by_what_was_usual() -> None:
    guard = SpikeGuard(3.0)
    assert all(guard.may_step(1.0 + number / 100) for number in range(ENOUGH))
    assert not guard.may_step(4.0)
    assert guard.may_step(2.9)
    guard.forget()
    assert guard.may_step(1000.0), "nothing is usual yet"
