"""Who runs when, on a clock and a device that exist on paper."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millstream.serving.scheduler import Scheduler
from millstream.serving.turns import EndTurn, Sleep, Terms
from millstream.session.pacing import Pace
from tests.unit.scheduler_moves import PACE, TERMS, device, land, metrics, run_of
from tests.unit.simulated_device import FIRST


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
    scheduler = Scheduler()
    scheduler.add("a", TERMS, 0.0)
    for step in range(3):
        land(scheduler, "a", 0.1 * (step + 1), frames=0)
    land(scheduler, "a", 0.4, frames=12)
    (session,) = scheduler.metrics(0.4).sessions
    assert session.chunks == 1
    assert session.load == pytest.approx(0.4 / 0.75)


def test_turns_without_frames_let_an_urgent_session_in_between() -> None:
    scheduler = Scheduler()
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
    session = metrics(simulated)["a"]
    shadow = simulated.shadows["a"]
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


@pytest.mark.slow
def test_policy_imports_without_torch() -> None:
    code = (
        "import sys, millstream.serving.scheduler, millstream.serving.admission; assert 'torch' not in "
        "sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
    assert isinstance(turn, EndTurn), "the second is made, shown or not"
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
