"""The rate of the first to come: what was measured with nobody watching is not yet what a stream keeps, and
nothing stalls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from millstream.commands.serve import SHARED_CORES
from millstream.core.errors import ConfigError, Overloaded
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Live, Rated
from millstream.serving.rates import RISE_AFTER_S
from millstream.session.chunk import Chunk
from millstream.session.pacing import RateKind
from tests.unit.session_states import SessionStates

ALONE_S = 1.3
"""What a chunk takes with nobody there."""


@contextmanager
def warmed(chunk_s: float, margin: float = SHARED_CORES) -> Iterator[SessionStates]:
    """A server whose trials are over."""
    states = SessionStates()
    try:
        admission = states.table.admission
        admission.config = replace(admission.config, margin=margin)
        states.engine.chunk_s = chunk_s
        states.service._probe.warm_up([states.config(64, 16.0)])
        yield states
    finally:
        states.teardown()


def come(states: SessionStates, kind: RateKind = "auto", fps: float = 16.0) -> str:
    return str(states.open(64, fps, kind, False, False, None, "run", 1e6))


def play(states: SessionStates, seconds: float) -> None:
    until = states.clock.now + seconds
    while states.clock.now < until:
        before = states.clock.now
        states.work(1)
        if states.clock.now == before:
            states.clock.now += 0.01


def rates(states: SessionStates, name: str) -> list[float]:
    return [notice.fps for notice in states.told[name] if isinstance(notice, (Live, Rated))]


def stalled_s(states: SessionStates, name: str) -> float:
    found = states.table.scheduler.metrics(states.clock.now).sessions
    return next(each.stalled_s for each in found if each.session_id == name)


@pytest.mark.parametrize("slower", [0.9, 1.0, 1.25, 1.4])
def test_a_device_that_is_slower_beside_its_first_viewer_does_not_stall_and_soon_plays_what_it_keeps(
    slower: float,
) -> None:
    with warmed(ALONE_S) as states:
        name = come(states)
        play(states, ALONE_S)  # the browser works from the first picture on
        states.engine.chunk_s = slower * ALONE_S
        play(states, 60.0)
        assert stalled_s(states, name) == 0
        kept = 0.98 * 12 / (slower * ALONE_S)
        assert 0.94 * kept <= rates(states, name)[-1] <= kept


def test_the_first_rate_is_raised_once_and_the_viewer_told_why_it_was_lower() -> None:
    with warmed(ALONE_S) as states:
        name = come(states)
        begun = states.clock.now
        assert rates(states, name) == [6.4]
        live = next(notice for notice in states.told[name] if isinstance(notice, Live))
        assert live.note == (
            "plays 6.4 frames a second at first, which this device keeps: a chunk takes 1.30 s with nobody "
            "watching"
        )
        play(states, RISE_AFTER_S - 2 * ALONE_S)
        assert rates(states, name) == [6.4]
        while len(rates(states, name)) == 1:
            play(states, 0.1)
        assert states.clock.now - begun < RISE_AFTER_S + 2 * ALONE_S
        assert rates(states, name) == [6.4, 9.0]
        raised = next(notice for notice in states.told[name] if isinstance(notice, Rated))
        assert raised.note == "plays 9 frames a second, which this device keeps: a chunk takes 1.30 s"


def test_a_machine_that_is_busy_since_its_trials_is_seen_by_the_first_chunk_and_nothing_stalls() -> None:
    with warmed(0.5) as states:
        states.engine.chunk_s = 4.0
        name = come(states)
        assert rates(states, name) == [16.0]
        play(states, 40.0)
        assert stalled_s(states, name) == 0
        told = states.told[name]
        assert isinstance(told[1], Rated), "before the first picture"
        assert sum(isinstance(notice, Chunk) for notice in told[:2]) == 0
        assert rates(states, name)[-1] == pytest.approx(0.98 * 12 / 4.0, rel=0.05)


def become_busier(states: SessionStates) -> str:
    name = come(states)
    play(states, 60.0)
    for chunk_s in (2.0, 2.6, 3.0):
        states.engine.chunk_s = chunk_s
        play(states, 2 * chunk_s)
    play(states, 30.0)
    return name


def test_one_that_was_late_is_given_room_and_a_machine_that_becomes_busier_stalls_it_for_less_time() -> None:
    with warmed(1.0) as states:
        name = become_busier(states)
        stalled = stalled_s(states, name)
        notes = [notice.note for notice in states.told[name] if isinstance(notice, Rated)]
        assert (
            "plays 4.1 frames a second for now, which this device keeps: a chunk takes 2.00 s and was late"
            in notes
        )
        assert rates(states, name)[-1] == 3.9, "what it keeps"
    with warmed(1.0, margin=1.0) as states:
        assert stalled < 0.6 * stalled_s(states, become_busier(states))


def test_a_chunk_that_is_hardly_late_costs_nothing_of_the_rate() -> None:
    with warmed(1.0) as states:
        name = come(states)
        play(states, 60.0)
        before = rates(states, name)
        states.engine.chunk_s = 1.1
        made = len(states.told[name])
        while len(states.told[name]) == made:
            play(states, 0.01)
        states.engine.chunk_s = 1.0
        play(states, 20.0)
        assert 0 < stalled_s(states, name) < 0.1
        assert rates(states, name) == before


def test_media_time_goes_on_where_the_last_chunk_ended_while_the_rate_changes() -> None:
    with warmed(ALONE_S) as states:
        name = come(states)
        play(states, ALONE_S)
        states.engine.chunk_s = 1.5 * ALONE_S
        play(states, 30.0)
        pictured = [notice for notice in states.told[name] if isinstance(notice, Chunk)]
        ends = [notice.media_s + len(notice.frames) / notice.fps for notice in pictured]
        assert [notice.media_s for notice in pictured[1:]] == pytest.approx(ends[:-1])


def test_who_comes_while_a_stream_was_measured_lately_has_no_margin_and_later_has_it_again() -> None:
    with warmed(ALONE_S) as states:
        first = come(states)
        play(states, 20.0)
        states.end(first)
        states.work(3)
        assert rates(states, come(states)) == [9.0]
        for name in list(states.table.entries):
            states.end(name)
        states.work(3)
        states.clock.now += 300.0
        assert rates(states, come(states)) == [6.4]


def test_a_margin_refuses_nobody_and_slows_nobody_who_is_there() -> None:
    with warmed(ALONE_S) as states:
        with pytest.raises(Overloaded, match="lower the frame rate to 9"):
            states.service.open(states.request("strict", 64, 12.0, "strict"), lambda notice: None)
        assert rates(states, come(states, "strict", 9.0)) == [9.0]
    with warmed(ALONE_S) as states:
        first = come(states, "asked", 4.5)
        second = come(states, "asked", 4.5)
        assert (rates(states, first), rates(states, second)) == ([4.5], [4.5])


def test_a_device_of_its_own_has_no_margin() -> None:
    with warmed(ALONE_S, margin=1.0) as states:
        assert rates(states, come(states)) == [9.0]
    with pytest.raises(ConfigError, match="margin must"):
        AdmissionConfig(memory_bytes=1, margin=0.9)
