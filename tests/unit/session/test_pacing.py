"""A viewer's clock, worked through by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.errors import ConfigError
from millstream.session.pacing import Pace, Playout

PACE = Pace(fps=16, chunk_frames=12)


def test_playing_begins_when_the_first_chunk_is_out() -> None:
    playout = Playout(pace=PACE, landed_at=10.0)
    assert playout.deadline(1.0) == 10.75
    playout.land(13.0, 9)
    assert (playout.misses, playout.waited_s(13.0)) == (0, 0.0)
    assert playout.dry_at == 13.5625


def test_a_viewer_from_elsewhere_is_no_further_behind_than_there() -> None:
    playout = Playout(pace=PACE, landed_at=10.0)
    playout.resume(11.0)
    assert (playout.dry_at, playout.ahead_s(10.0), playout.played_s(10.0)) == (11.0, 1.0, 0.0)
    assert playout.may_start_at == 11.0 - PACE.window_s
    playout.land(10.5, 12)
    assert (playout.dry_at, playout.misses) == (11.75, 0)


def test_more_than_the_lead_nobody_has_and_who_has_nothing_begins_anew() -> None:
    playout = Playout(pace=PACE, landed_at=10.0)
    playout.resume(9.0)
    assert playout == Playout(pace=PACE, landed_at=10.0)
    playout.resume(1000.0)
    assert playout.ahead_s(10.0) == PACE.max_ahead_s


def test_a_late_chunk_is_a_miss_and_the_viewer_waits_for_it() -> None:
    playout = Playout(pace=PACE, landed_at=0.0)
    playout.land(0.0, 12)
    playout.land(1.0, 12)
    assert playout.misses == 1
    assert playout.waited_s(1.0) == pytest.approx(0.25)
    assert playout.dry_at == 1.75
    assert playout.continuity(1.75) == pytest.approx(1.5 / 1.75)


def test_a_stall_shows_while_it_lasts_and_asking_changes_nothing() -> None:
    playout = Playout(pace=PACE, landed_at=0.0)
    playout.land(0.0, 12)
    assert playout.waited_s(1.75) == 1.0
    assert playout.continuity(1.75) == pytest.approx(0.75 / 1.75)
    assert (playout.dry_at, playout.misses) == (0.75, 0)


def test_a_halted_clock_stands_still() -> None:
    playout = Playout(pace=PACE, landed_at=0.0)
    playout.land(0.0, 12)
    playout.halt(0.5)
    assert playout.ahead_s(100.0) == 0.25
    playout.proceed(100.0)
    assert playout.dry_at == pytest.approx(100.25)
    playout.land(100.25, 12)
    assert (playout.misses, playout.stalled_s) == (0, 0.0)


def test_a_stall_that_a_halt_interrupts_is_one_miss_without_the_halt() -> None:
    playout = Playout(pace=PACE, landed_at=0.0)
    playout.land(0.0, 12)
    playout.halt(1.0)
    playout.proceed(51.0)
    playout.land(51.5, 12)
    assert playout.misses == 1
    assert playout.stalled_s == pytest.approx(0.25 + 0.5)


def test_a_chunk_that_lands_during_a_halt_waits_for_the_viewer() -> None:
    playout = Playout(pace=PACE, landed_at=0.0)
    playout.land(0.0, 12)
    playout.halt(0.5)
    playout.land(2.0, 12)
    assert (playout.misses, playout.ahead_s(50.0)) == (0, 1.0)


def test_a_lead_shorter_than_a_chunk_is_refused_with_one_that_works() -> None:
    with pytest.raises(ConfigError, match=r"plays 0.75 s; use 1.5 s or more"):
        Pace(fps=16, chunk_frames=12, lead_s=0.75)
    with pytest.raises(ConfigError, match="fps must be above 0"):
        Pace(fps=float("nan"), chunk_frames=12)


@given(waits=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=30), frames=st.integers(1, 12))
def test_time_since_the_first_picture_is_played_or_waited(waits: list[float], frames: int) -> None:
    playout = Playout(pace=PACE, landed_at=0.0)
    now = 0.0
    for wait in waits:
        now += wait
        playout.land(now, frames)
    later = now + 1.0
    assert playout.played_s(later) + playout.waited_s(later) == pytest.approx(later - waits[0])
    assert 0.0 <= playout.continuity(later) <= 1.0
