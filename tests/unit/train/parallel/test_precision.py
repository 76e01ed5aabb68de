"""A loss is scaled so that float16 holds its gradients, and a step that does not fit is skipped."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from millstream.train.parallel.precision import LossScale

FINE = torch.tensor(2.0)
TOO_LARGE = torch.tensor(float("inf"))


@given(st.lists(st.booleans(), max_size=60))
def test_the_scale_halves_with_each_overflow_and_doubles_after_enough_good_steps(fits: list[bool]) -> None:
    scale = LossScale(value=2.0**10, grows_after=5)
    expected = 2.0**10
    good = 0
    for each in fits:
        assert scale.may_step(FINE if each else TOO_LARGE) is each
        good = good + 1 if each else 0
        expected = expected * 2 if good == 5 else expected if each else max(1.0, expected / 2)
        good %= 5
        assert scale.value == expected
    assert scale.skipped == fits.count(False)


def test_a_gradient_that_is_no_number_is_an_overflow() -> None:
    assert not LossScale().may_step(torch.tensor(float("nan")))


def test_a_scale_goes_on_where_it_was() -> None:
    first = LossScale()
    second = LossScale()
    for squares in (FINE, TOO_LARGE, FINE, FINE):
        first.may_step(squares)
    second.load_state(first.state())
    assert second == first
