"""Who runs when, on a clock and a device that exist on paper."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.errors import ConfigError
from millstream.runtime.batching import BatchPolicy
from millstream.runtime.overload import Demand, playing_rates
from millstream.runtime.pacing import Pace
from millstream.runtime.scheduler import Scheduler
from millstream.runtime.turns import End, Offload, Restore, Run, SessionMetrics, Sleep, Terms
from tests.unit.simulated_device import FIRST, SimulatedDevice

PACE = Pace(fps=16, chunk_frames=12)
TERMS = Terms(pace=PACE)


def device(costs: dict[str, float], *, jitter: float = 0.0, first_frames: int = 12, seed: int = 0) -> SimulatedDevice:
    """A device on which a chunk of each session takes so long, more or less."""
    chance = random.Random(seed)
    return SimulatedDevice(
        Scheduler(),
        seconds=lambda names: costs[names[0]] * (1 + jitter * chance.uniform(-1, 1)),
        first_frames=first_frames,
    )


def metrics(simulated: SimulatedDevice) -> dict[str, SessionMetrics]:
    return {each.session_id: each for each in simulated.scheduler.metrics(simulated.now).sessions}


def run_of(scheduler: Scheduler, now: float) -> tuple[str, ...]:
    turn = scheduler.next(now)
    assert isinstance(turn, Run), f"expected a run, got {turn}"
    return turn.session_ids


def land(scheduler: Scheduler, session_id: str, now: float, *, frames: int = 12, seconds: float = 0.1) -> None:
    assert run_of(scheduler, now - seconds) == (session_id,)
    scheduler.finished(session_id, now, frames=frames, seconds=seconds)


def test_the_session_whose_viewer_runs_dry_first_goes_first() -> None:
    scheduler = Scheduler()
    scheduler.add("slow", Terms(pace=Pace(fps=4, chunk_frames=12)), 0.0)
    scheduler.add("fast", TERMS, 0.0)
    land(scheduler, "fast", 0.1)
    land(scheduler, "fast", 0.2)
    assert run_of(scheduler, 0.2) == ("slow",)


def test_a_session_with_its_lead_filled_sleeps_until_the_viewer_has_caught_up() -> None:
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    land(scheduler, "a", 1.0)
    land(scheduler, "a", 1.1)
    assert scheduler.next(1.1) == Sleep(until=1.75)
    assert run_of(scheduler, 1.75) == ("a",)


def test_without_sessions_only_the_caller_can_wake_it() -> None:
    assert Scheduler().next(0.0) == Sleep(until=None)


def test_two_turns_at_once_are_of_two_sessions() -> None:
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    scheduler.add("b", TERMS, 0.0)
    assert {*run_of(scheduler, 0.0), *run_of(scheduler, 0.0)} == {"a", "b"}
    assert isinstance(scheduler.next(0.0), Sleep)


def test_a_turn_without_frames_costs_time_and_moves_no_deadline() -> None:
    scheduler = Scheduler(granularity="step")
    scheduler.add("a", TERMS, 0.0)
    for step in range(3):
        land(scheduler, "a", 0.1 * (step + 1), frames=0)
    land(scheduler, "a", 0.4, frames=12)
    (session,) = scheduler.metrics(0.4).sessions
    assert session.chunks == 1
    assert session.load == pytest.approx(0.4 / 0.75)


def test_steps_let_an_urgent_session_in_between() -> None:
    scheduler = Scheduler(granularity="step")
    scheduler.add("long", Terms(pace=Pace(fps=2, chunk_frames=12)), 0.0)
    land(scheduler, "long", 0.5, frames=0, seconds=0.5)
    scheduler.add("urgent", TERMS, 0.5)
    assert run_of(scheduler, 0.5) == ("urgent",)


def test_a_late_report_for_a_session_without_a_turn_is_an_error() -> None:
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    with pytest.raises(AssertionError, match="no turn under way"):
        scheduler.finished("a", 1.0, frames=12, seconds=0.1)


def test_metrics_count_what_the_viewer_saw() -> None:
    simulated = device({"a": 1.0}, first_frames=FIRST)
    simulated.add("a", TERMS)
    simulated.run(30.0)
    session, shadow = metrics(simulated)["a"], simulated.shadows["a"]
    assert (session.chunks, session.misses) == (30, 29)
    assert session.first_chunk_s == 1.0
    assert session.stalled_s == pytest.approx(shadow.stalled_s)
    assert session.continuity == pytest.approx(0.75, abs=0.01)
    assert simulated.scheduler.metrics(30.0).busy_s == pytest.approx(simulated.busy_s)
    assert simulated.scheduler.metrics(30.0).utilisation == pytest.approx(1 / 0.75, rel=0.01)


def test_asking_for_metrics_changes_no_turn() -> None:
    runs = []
    for asks in (False, True):
        simulated = device({"a": 0.5, "b": 0.7, "c": 0.3}, jitter=0.3, seed=5)
        for name in "abc":
            simulated.add(name, TERMS)
        for tick in range(100):
            simulated.at(tick * 0.2, lambda now, s=simulated, asks=asks: asks and s.scheduler.metrics(now))
        simulated.run(20.0)
        runs.append(simulated.turns)
    assert runs[0] == runs[1]


# --- pictures that follow


def arrive(scheduler: Scheduler, session_id: str, now: float, *, seconds: float = 0.1) -> None:
    assert run_of(scheduler, now - seconds) == (session_id,)
    scheduler.arrived(session_id, now, frames=12, seconds=seconds)


def test_the_next_turn_is_given_when_a_chunk_arrives_and_its_viewer_has_it_when_it_is_shown() -> None:
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    arrive(scheduler, "a", 1.0)
    assert run_of(scheduler, 1.0) == ("a",), "as if the pictures were out"
    before = scheduler.metrics(1.0).sessions[0]
    assert (before.chunks, before.first_chunk_s, before.ahead_s) == (0, None, 0.0)
    scheduler.shown("a", 1.2, frames=12)
    after = scheduler.metrics(1.2).sessions[0]
    assert (after.chunks, after.first_chunk_s, after.ahead_s) == (1, 1.2, pytest.approx(0.75))


def test_lateness_is_counted_from_pictures_not_from_latents() -> None:
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    arrive(scheduler, "a", 1.0)
    scheduler.shown("a", 1.0, frames=12)  # played until 1.75
    arrive(scheduler, "a", 1.7)
    assert scheduler.dry_s("a", 1.7) == 0
    assert scheduler.dry_s("a", 1.95) == pytest.approx(0.2)
    scheduler.shown("a", 1.95, frames=12)
    (session,) = scheduler.metrics(1.95).sessions
    assert (session.misses, session.stalled_s) == (1, pytest.approx(0.2))


def test_pictures_to_come_count_for_the_lead_and_for_the_limit() -> None:
    scheduler = Scheduler()
    scheduler.add("a", Terms(pace=PACE, max_chunks=2), 0.0)
    arrive(scheduler, "a", 1.0)
    scheduler.shown("a", 1.0, frames=12)
    arrive(scheduler, "a", 1.1)
    turn = scheduler.next(1.1)
    assert isinstance(turn, End), "the second is made, shown or not"
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    for moment in (1.0, 1.1):
        arrive(scheduler, "a", moment)
        if moment == 1.0:
            scheduler.shown("a", moment, frames=12)
    assert scheduler.next(1.1) == Sleep(until=1.75)


def test_a_halt_between_a_chunk_and_its_pictures_stops_both_clocks() -> None:
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    arrive(scheduler, "a", 1.0)
    scheduler.halt("a", "paused", 1.0)
    scheduler.shown("a", 1.3, frames=12)
    scheduler.proceed("a", "paused", 5.0)
    (session,) = scheduler.metrics(5.0).sessions
    assert (session.misses, session.ahead_s) == (0, pytest.approx(0.75))
    assert run_of(scheduler, 5.0) == ("a",)


def test_what_was_not_sent_for_cannot_be_shown() -> None:
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    with pytest.raises(AssertionError, match="no chunk of a has arrived"):
        scheduler.shown("a", 1.0, frames=12)
    arrive(scheduler, "a", 1.0)
    with pytest.raises(AssertionError, match="neither is shown"):
        arrive(scheduler, "a", 1.2)


# --- pausing, idling, limits


def test_a_paused_session_loses_nothing_and_goes_on_where_it_was() -> None:
    simulated = device({"a": 0.3})
    simulated.add("a", TERMS)
    simulated.at(5.1, lambda now: simulated.halt("a", now))
    simulated.at(50.0, lambda now: simulated.proceed("a", now))
    simulated.run(60.0)
    session = metrics(simulated)["a"]
    assert (session.misses, session.stalled_s) == (0, 0.0)
    assert session.played_s == pytest.approx(60.0 - 0.3 - (50.0 - 5.1))
    assert not [time for time in simulated.landings("a") if 5.5 < time < 50.0]


def test_a_session_goes_on_when_every_reason_to_stand_still_is_gone() -> None:
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    for why in ("paused", "unwatched", "slow"):
        scheduler.halt("a", why, 0.0)
    scheduler.proceed("a", "unwatched", 1.0)
    scheduler.proceed("a", "paused", 1.0)
    assert isinstance(scheduler.next(1.0), Sleep)
    scheduler.proceed("a", "slow", 2.0)
    assert run_of(scheduler, 2.0) == ("a",)


def test_a_recording_runs_on_without_viewers_but_not_while_paused() -> None:
    scheduler = Scheduler()
    scheduler.add("a", Terms(pace=PACE, unattended="run"), 0.0)
    scheduler.halt("a", "unwatched", 0.0)
    scheduler.halt("a", "slow", 0.0)
    land(scheduler, "a", 0.1)
    scheduler.halt("a", "paused", 0.1)
    assert isinstance(scheduler.next(0.2), Sleep)


def test_an_idle_session_is_offloaded_once_and_restored_before_it_runs() -> None:
    simulated = device({"a": 0.3, "b": 0.3})
    simulated.add("a", Terms(pace=PACE, idle_s=10.0))
    simulated.add("b", TERMS)
    simulated.at(5.0, lambda now: simulated.halt("a", now))
    simulated.at(40.0, lambda now: simulated.proceed("a", now))
    simulated.run(60.0)
    (left, offload), (back, restore) = simulated.chores
    assert (offload, restore) == (Offload(session_id="a"), Restore(session_id="a"))
    assert left == pytest.approx(15.0, abs=0.31)
    first_again = next(time for time, run in simulated.turns if time > 40.0 and "a" in run.session_ids)
    assert 40.0 <= back <= first_again
    assert metrics(simulated)["a"].misses == 0


def test_a_sleeping_scheduler_wakes_for_idle_memory_and_for_limits() -> None:
    scheduler = Scheduler()
    scheduler.add("a", Terms(pace=PACE, idle_s=10.0, max_life_s=25.0), 0.0)
    scheduler.halt("a", "paused", 2.0)
    assert scheduler.next(2.0) == Sleep(until=12.0)
    assert scheduler.next(12.0) == Offload(session_id="a")
    assert scheduler.next(12.0) == Sleep(until=25.0)
    assert isinstance(scheduler.next(25.0), End)
    assert scheduler.next(25.0) == Sleep(until=None)


@pytest.mark.parametrize(
    ("terms", "reason", "chunks"),
    [
        (Terms(pace=PACE, max_chunks=7), "it has made its 7 chunks; start a new session to go on", 7),
        (Terms(pace=PACE, max_life_s=6.0), "it has lived its 6 s; start a new session to go on", 9),
    ],
)
def test_a_session_ends_at_its_limit_and_the_other_goes_on(terms: Terms, reason: str, chunks: int) -> None:
    simulated = device({"a": 0.2, "b": 0.2})
    simulated.add("a", terms)
    simulated.add("b", TERMS)
    made = simulated.shadows["a"].landings
    simulated.run(20.0)
    assert [turn for _, turn in simulated.chores] == [End(session_id="a", reason=reason)]
    assert len(made) == chunks
    assert len(simulated.landings("b")) > 20


@pytest.mark.parametrize("wrong", [dict(weight=0.0), dict(weight=float("nan")), dict(idle_s=0.0), dict(max_chunks=0)])
def test_terms_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Terms(pace=PACE, **wrong)  # type: ignore[arg-type]


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
    expected = playing_rates({name: Demand(load=0.2 / 0.75, weight=weight) for name, weight in weights.items()})
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


# --- batching


def batching_device(seconds_by_size: dict[int, float], sessions: int, **policy: int) -> SimulatedDevice:
    """Sessions of one kind, with a lead of three chunks."""
    scheduler = Scheduler(batching=BatchPolicy(**policy))
    simulated = SimulatedDevice(scheduler, seconds=lambda names: seconds_by_size[len(names)])
    for index in range(sessions):
        terms = Terms(pace=Pace(fps=16, chunk_frames=12, lead_s=2.25))
        simulated.add(f"s{index}", terms, batch_key="denoise 480x832")
    return simulated


def sizes(simulated: SimulatedDevice) -> list[int]:
    return [len(run.session_ids) for _, run in simulated.turns]


@pytest.mark.parametrize(("max_size", "continuity"), [(1, 0.625), (4, 1.0)])
def test_batches_that_are_faster_carry_sessions_that_one_by_one_would_not(max_size: int, continuity: float) -> None:
    simulated = batching_device({1: 0.3, 2: 0.4, 3: 0.5, 4: 0.6}, 4, max_size=max_size)
    simulated.run(100.0)
    before = metrics(simulated)
    simulated.run(300.0)
    assert max(sizes(simulated)) <= max_size
    for name, session in metrics(simulated).items():
        assert 1 - (session.stalled_s - before[name].stalled_s) / 200.0 == pytest.approx(continuity, abs=0.01)


def test_batches_that_are_slower_are_only_ever_tried() -> None:
    simulated = batching_device({1: 0.3, 2: 0.62, 3: 0.95, 4: 1.3}, 4, explore_every=32, refresh_every=100_000)
    simulated.run(600.0)
    tried = [size for size in sizes(simulated) if size > 1]
    assert sorted(tried) == [2] * 3 + [3] * 3 + [4] * 3


@pytest.mark.parametrize(("neighbour", "together"), [(False, ("a", "b")), (True, ("a",))])
def test_a_batch_that_would_make_a_neighbour_late_is_not_run(neighbour: bool, together: tuple[str, ...]) -> None:
    scheduler = Scheduler()
    for size, seconds in ((1, 0.3), (2, 0.42)):
        for _ in range(3):
            scheduler.batch_times.add("shape", size, seconds)
    scheduler.add("a", TERMS, 0.0, batch_key="shape")
    scheduler.add("b", Terms(pace=Pace(fps=8, chunk_frames=12)), 0.1, batch_key="shape")
    if neighbour:  # dry at 0.8 and 0.1 s a chunk: there is time for it after one chunk, not after two
        scheduler.add("neighbour", Terms(pace=Pace(fps=20, chunk_frames=12)), 0.1)
        land(scheduler, "neighbour", 0.2, seconds=0.1)
    assert run_of(scheduler, 0.3) == together


def test_sessions_without_a_key_or_with_another_never_share_a_batch() -> None:
    scheduler = Scheduler()
    for size in (1, 2):
        for _ in range(3):
            scheduler.batch_times.add("shape", size, 0.1)
    for name, key in (("a", "shape"), ("b", "other shape"), ("c", None), ("d", None)):
        scheduler.add(name, TERMS, 0.0, batch_key=key)
    assert [run_of(scheduler, 0.0) for _ in range(4)] == [("a",), ("b",), ("c",), ("d",)]


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
        name, terms = f"s{index}", Terms(pace=pace, weight=weight, idle_s=3.0)
        simulated.at(chance.uniform(0, 5) if index else 0.0, lambda _, name=name, terms=terms: simulated.add(name, terms))
        if halts:
            begin = chance.uniform(5, 15)
            simulated.at(begin, lambda now, name=name: simulated.halt(name, now))
            simulated.at(begin + chance.uniform(0, 8), lambda now, name=name: simulated.proceed(name, now))
    simulated.run(until)
    return simulated


@given(loads, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_work_is_conserved_order_is_kept_and_no_lead_is_exceeded(sessions: list[tuple[Pace, float, float]], seed: int) -> None:
    simulated = simulate(sessions, seed)  # asserts in every turn: no sleep while one may run, no halted session runs
    for shadow in simulated.shadows.values():
        assert shadow.furthest_ahead_s <= shadow.pace.max_ahead_s + 1e-9
        times = [time for time, _ in shadow.landings]
        assert times == sorted(times)
    assert all(len(run.session_ids) == 1 for _, run in simulated.turns)


@given(loads, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_metrics_agree_with_what_every_viewer_saw(sessions: list[tuple[Pace, float, float]], seed: int) -> None:
    simulated = simulate(sessions, seed)
    for name, session in metrics(simulated).items():
        shadow = simulated.shadows[name]
        assert (session.chunks, session.misses) == (len(shadow.landings), shadow.misses)
        assert session.stalled_s >= shadow.stalled_s - 1e-6
        assert 0.0 <= session.continuity <= 1.0


@given(st.lists(st.tuples(st.sampled_from([8.0, 16.0, 24.0]), st.floats(1.0, 4.0)), min_size=2, max_size=6), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_nobody_starves_at_three_times_what_the_device_can_do(sessions: list[tuple[float, float]], seed: int) -> None:
    each = 3.0 / len(sessions)
    asked = [(Pace(fps=fps, chunk_frames=12), each, weight) for fps, weight in sessions]
    simulated = simulate(asked, seed, until=120.0, halts=False)
    named = {f"s{index}": Demand(load=each, weight=weight) for index, (_, weight) in enumerate(sessions)}
    expected = playing_rates(named)
    for name, session in metrics(simulated).items():
        assert session.continuity >= 0.75 * expected[name], f"{name} got {session.continuity}, of {expected[name]}"


def test_policy_imports_without_torch() -> None:
    code = "import sys, millstream.runtime.scheduler, millstream.runtime.admission; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
