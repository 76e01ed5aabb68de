"""More asked of a device than it can do: who loses how much; and what holds whatever is asked."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.serving.overload import PlayingLoad, playing_rates
from millstream.serving.turns import Terms
from millstream.session.pacing import Pace
from tests.unit.scheduler_moves import PACE, TERMS, device, metrics
from tests.unit.simulated_device import FIRST, SimulatedDevice

# --- overload


def test_under_overload_equal_weights_lose_alike_whatever_they_ask_for() -> None:
    fps = {"a": 16.0, "b": 24.0, "c": 8.0, "d": 12.0}
    costs = {"a": 0.5, "b": 0.5, "c": 1.5, "d": 0.3}
    load = sum(costs[name] * fps[name] / 12 for name in fps)
    assert load > 2.5
    simulated = device(costs, jitter=0.2)
    for name in fps:
        simulated.add(name, Terms(pace=Pace(fps=fps[name], chunk_frames=12)))
    simulated.run(300.0)
    for name, session in metrics(simulated).items():
        assert session.continuity == pytest.approx(1 / load, rel=0.1), name


def test_under_overload_continuity_goes_by_weight_and_never_above_real_time() -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 2.0, "d": 3.0, "e": 3.0, "heavy": 20.0}
    simulated = device(dict.fromkeys(weights, 0.2), jitter=0.2)
    for name, weight in weights.items():
        simulated.add(name, Terms(pace=PACE, weight=weight))
    simulated.run(300.0)
    expected = playing_rates(
        {name: PlayingLoad(load=0.2 / 0.75, weight=weight) for name, weight in weights.items()}
    )
    for name, session in metrics(simulated).items():
        assert session.continuity == pytest.approx(expected[name], rel=0.1), name
    assert metrics(simulated)["heavy"].continuity > 0.99


def test_a_good_past_is_not_held_against_a_session_when_overload_comes() -> None:
    simulated = device(dict.fromkeys("abcd", 0.5))
    simulated.add("a", TERMS)
    simulated.run(600.0)
    for name in "bcd":
        simulated.add(name, TERMS)
    simulated.run(610.0)
    late = [time for time in simulated.landings("a") if time > 600.0]
    assert max(b - a for a, b in pairwise(late)) < 2 * 4 * 0.5


def test_when_overload_goes_everybody_is_back_in_real_time() -> None:
    simulated = device(dict.fromkeys("abcd", 0.34))
    for name in "abcd":
        simulated.add(name, TERMS)
    simulated.run(60.0)
    simulated.remove("c")
    simulated.remove("d")
    simulated.run(65.0)
    before = {name: session.misses for name, session in metrics(simulated).items()}
    simulated.run(120.0)
    assert {name: session.misses for name, session in metrics(simulated).items()} == before


# --- properties


paces = st.builds(
    lambda fps, lead: Pace(fps=fps, chunk_frames=12, lead_s=lead * 12 / fps),
    st.sampled_from([4.0, 8.0, 12.5, 16.0, 30.0]),
    st.floats(1.2, 5.0),
)
loads = st.lists(st.tuples(paces, st.floats(0.05, 1.2), st.floats(0.5, 4.0)), min_size=1, max_size=5)


def simulate(
    sessions: list[tuple[Pace, float, float]], seed: int, *, until: float = 25.0, halts: bool = True
) -> SimulatedDevice:
    """Sessions of these paces, loads and weights, with jitter, joining and pausing as chance has it."""
    chance = random.Random(seed)
    costs = {f"s{index}": load * pace.media_s for index, (pace, load, _) in enumerate(sessions)}
    simulated = device(costs, jitter=0.4, first_frames=FIRST, seed=seed)
    for index, (pace, _, weight) in enumerate(sessions):
        name = f"s{index}"
        terms = Terms(pace=pace, weight=weight, idle_s=3.0)
        simulated.at(
            chance.uniform(0, 5) if index else 0.0,
            lambda _, name=name, terms=terms: simulated.add(name, terms),
        )
        if halts:
            begin = chance.uniform(5, 15)
            simulated.at(begin, lambda now, name=name: simulated.halt(name, now))
            simulated.at(begin + chance.uniform(0, 8), lambda now, name=name: simulated.proceed(name, now))
    simulated.run(until)
    return simulated


@given(loads, st.integers(0, 1000))
@settings(max_examples=60)
def test_work_is_conserved_order_is_kept_and_no_lead_is_exceeded(
    sessions: list[tuple[Pace, float, float]], seed: int
) -> None:
    simulated = simulate(
        sessions, seed
    )  # asserts in every turn: no sleep while one may run, no halted session runs
    for shadow in simulated.shadows.values():
        assert shadow.furthest_ahead_s <= shadow.pace.max_ahead_s + 1e-9
        times = [time for time, _ in shadow.landings]
        assert times == sorted(times)
    assert all(len(run.session_ids) == 1 for _, run in simulated.turns)


@given(loads, st.integers(0, 1000))
@settings(max_examples=60)
def test_metrics_agree_with_what_every_viewer_saw(
    sessions: list[tuple[Pace, float, float]], seed: int
) -> None:
    simulated = simulate(sessions, seed)
    for name, session in metrics(simulated).items():
        shadow = simulated.shadows[name]
        assert (session.chunks, session.misses) == (len(shadow.landings), shadow.misses)
        assert session.stalled_s >= shadow.stalled_s - 1e-6
        assert 0.0 <= session.continuity <= 1.0


@given(
    st.lists(st.tuples(st.sampled_from([8.0, 16.0, 24.0]), st.floats(1.0, 4.0)), min_size=2, max_size=6),
    st.integers(0, 99),
)
@settings(max_examples=40)
def test_nobody_starves_at_three_times_what_the_device_can_do(
    sessions: list[tuple[float, float]], seed: int
) -> None:
    each = 3.0 / len(sessions)
    asked = [(Pace(fps=fps, chunk_frames=12), each, weight) for fps, weight in sessions]
    simulated = simulate(asked, seed, until=120.0, halts=False)
    named = {f"s{index}": PlayingLoad(load=each, weight=weight) for index, (_, weight) in enumerate(sessions)}
    expected = playing_rates(named)
    for name, session in metrics(simulated).items():
        assert session.continuity >= 0.75 * expected[name], (
            f"{name} got {session.continuity}, of {expected[name]}"
        )
