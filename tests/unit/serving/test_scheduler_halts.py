"""Sessions that pause, idle and come to their limits, on a clock that exists on paper."""

from __future__ import annotations

import pytest

from millstream.core.errors import ConfigError
from millstream.serving.scheduler import Scheduler
from millstream.serving.turns import EndTurn, Offload, RestoreTurn, Sleep, Terms
from tests.unit.scheduler_moves import PACE, TERMS, device, land, metrics, run_of


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
    assert (offload, restore) == (Offload(session_id="a"), RestoreTurn(session_id="a"))
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
    assert isinstance(scheduler.next(25.0), EndTurn)
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
    assert [turn for _, turn in simulated.chores] == [EndTurn(session_id="a", reason=reason)]
    assert len(made) == chunks
    assert len(simulated.landings("b")) > 20


@pytest.mark.parametrize(
    "wrong", [dict(weight=0.0), dict(weight=float("nan")), dict(idle_s=0.0), dict(max_chunks=0)]
)
def test_terms_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Terms(pace=PACE, **wrong)  # type: ignore[arg-type]
