"""Slowed clocks fit the device, use it up, and slow nobody below their weight's share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.serving.overload import PlayingLoad, playing_rates

demands = st.dictionaries(
    st.integers(0, 20),
    st.builds(
        lambda load, weight: PlayingLoad(load=load, weight=weight),
        st.floats(0.0, 3.0),
        st.floats(0.01, 100.0),
    ),
    min_size=1,
    max_size=12,
)


def test_equal_sessions_lose_alike() -> None:
    rates = playing_rates({name: PlayingLoad(load=0.5, weight=1.0) for name in "abcdef"})
    assert rates == pytest.approx(dict.fromkeys("abcdef", 1 / 3))


def test_a_heavy_session_reaches_real_time_and_leaves_the_rest() -> None:
    rates = playing_rates(
        {
            "heavy": PlayingLoad(load=0.4, weight=10.0),
            "a": PlayingLoad(load=0.6, weight=1.0),
            "b": PlayingLoad(load=0.6, weight=1.0),
        }
    )
    assert rates == pytest.approx({"heavy": 1.0, "a": 0.5, "b": 0.5})


@given(demands)
def test_rates_fit_the_device_and_waste_nothing(asked: dict[int, PlayingLoad]) -> None:
    rates = playing_rates(asked)
    used = sum(asked[name].load * rate for name, rate in rates.items())
    assert all(0 < rate <= 1 for rate in rates.values())
    assert used == pytest.approx(min(1.0, sum(demand.load for demand in asked.values())), abs=1e-6)


@given(demands)
def test_whoever_is_below_real_time_gets_the_same_per_weight_and_nobody_gets_more(
    asked: dict[int, PlayingLoad],
) -> None:
    rates = playing_rates(asked)
    levels = [rates[name] / demand.weight for name, demand in asked.items() if rates[name] < 1]
    assert levels == pytest.approx([levels[0]] * len(levels) if levels else [])
    if levels:
        assert all(
            rates[name] / demand.weight <= levels[0] * (1 + 1e-6)
            for name, demand in asked.items()
            if demand.load > 1e-6
        )
