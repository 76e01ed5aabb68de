"""Frame rates that are chosen here: shared evenly, told with their reason, soon down on a slow device, up
again later."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.config import MIN_FPS, StreamConfig
from millstream.core.errors import ConfigError, Overloaded
from millstream.serving.notices import Live, Rated
from millstream.serving.promise import DeviceClaim, keep_time, utilisation
from millstream.serving.rates import (
    AUTO_LEAST_FPS,
    RISE_AFTER_S,
    RateRequest,
    RateWish,
    kept_rates,
    next_rate,
)
from millstream.session.chunk import Chunk
from millstream.session.pacing import Pace, RateKind
from tests.unit.session_states import SessionStates

SHARE = 0.98


def promises(claims: Sequence[DeviceClaim], yielding: Sequence[DeviceClaim] = ()) -> bool:
    return utilisation([*claims, *yielding]) <= SHARE and keep_time(claims)


def bid(seconds: float, fps: float, kind: RateKind) -> RateRequest:
    return RateRequest(seconds=seconds, pace=Pace(fps=fps, chunk_frames=12), wish=RateWish.of(kind, fps))


bids = st.builds(
    bid,
    st.floats(0.01, 5.0),
    st.sampled_from([1.0, 8.0, 16.0, 24.0]),
    st.sampled_from(["auto", "asked", "strict"]),
)


@given(st.lists(bids, min_size=1, max_size=6))
def test_rates_are_kept_where_they_can_be_and_never_above_what_was_asked(wanted: list[RateRequest]) -> None:
    rates = kept_rates(wanted, promises)
    for each, fps in zip(wanted, rates, strict=True):
        assert MIN_FPS <= fps <= each.wish.most
        assert fps == each.wish.most or not each.wish.strict
    if promises([each.at_least() for each in wanted]):
        assert promises([each.at(fps) for each, fps in zip(wanted, rates, strict=True)])
        assert all(
            fps >= min(each.wish.least, AUTO_LEAST_FPS) for each, fps in zip(wanted, rates, strict=True)
        )


def test_those_who_let_the_server_choose_make_room_and_those_who_asked_do_not() -> None:
    auto = bid(0.3, 16.0, "auto")
    asked = bid(0.3, 8.0, "asked")
    assert kept_rates([auto], promises) == [16.0]
    assert kept_rates([auto, asked], promises) == [16.0, 8.0]
    rates = kept_rates([auto, auto, asked], promises)
    assert rates[2] == 8.0
    assert rates[0] == rates[1] < 16.0


def test_one_that_came_back_after_a_death_has_what_is_left_and_then_its_own_rate_before_others_have_more() -> (
    None
):
    back = RateRequest(
        seconds=0.1, pace=Pace(fps=16, chunk_frames=12), wish=RateWish.of("asked", 16.0, yields=True)
    )
    asked = bid(0.1, 16, "asked")
    chosen = bid(0.1, 16, "auto")
    *others, last = kept_rates([*[asked] * 7, back], promises)
    assert others == [16] * 7, "who was there keeps what was promised"
    assert 4 <= last < 16
    *_, auto, last = kept_rates([*[asked] * 6, chosen, back], promises)
    assert last == 16, "who lets the server choose makes room first"
    assert AUTO_LEAST_FPS <= auto < 16
    *others, last = kept_rates([*[asked] * 8, back], promises)
    assert max(others) < 16, "where even that is too much, everybody is slowed"
    assert last == pytest.approx(others[0] / 4, rel=0.1)


def test_a_rate_falls_at_once_and_rises_after_a_while() -> None:
    assert next_rate(16.0, 9.0, held_s=0.0) == 9.0
    assert next_rate(9.0, 16.0, held_s=1.0) == 9.0
    assert next_rate(9.0, 16.0, held_s=RISE_AFTER_S) == 16.0
    assert next_rate(16.0, 15.8, held_s=100.0) == 16.0, "not for so little"


@contextmanager
def server() -> Iterator[SessionStates]:
    states = SessionStates()
    try:
        yield states
    finally:
        states.teardown()


def play(states: SessionStates, seconds: float, jitter: float = 0.0, seed: int = 0) -> None:
    """Let time pass as it does for an engine that sleeps until somebody is due."""
    chance = random.Random(seed)
    usual = states.engine.chunk_s
    until = states.clock.now + seconds
    while states.clock.now < until:
        before = states.clock.now
        states.engine.chunk_s = usual * (1 + jitter * chance.uniform(-1, 1))
        states.work(1)
        if states.clock.now == before:
            states.clock.now += 0.01
    states.engine.chunk_s = usual


def warmed(states: SessionStates, side: int = 64) -> None:
    states.service._probe.warm_up([states.config(side, 16.0)])


def rates(states: SessionStates, name: str) -> list[float]:
    return [notice.fps for notice in states.told[name] if isinstance(notice, (Live, Rated))]


def stalled_s(states: SessionStates, name: str) -> float:
    found = states.table.scheduler.metrics(states.clock.now).sessions
    return next(each.stalled_s for each in found if each.session_id == name)


def test_the_first_viewer_is_let_in_at_what_a_slow_device_keeps_and_told_why() -> None:
    with server() as states:
        states.engine.chunk_s = 1.22
        warmed(states)
        name = states.open(64, 16.0, "auto", False, False, None, "run")
        assert rates(states, name) == [9.6]
        live = next(notice for notice in states.told[name] if isinstance(notice, Live))
        assert live.note == "plays 9.6 frames a second, which this device keeps: a chunk takes 1.22 s"
        play(states, 60.0)
        assert stalled_s(states, name) == 0


def test_a_rate_that_was_asked_for_is_lowered_on_an_idle_device_and_refused_with_an_offer_to_the_strict() -> (
    None
):
    with server() as states:
        states.engine.chunk_s = 1.22
        warmed(states)
        with pytest.raises(Overloaded, match="lower the frame rate to 9") as refused:
            states.service.open(states.request("strict", 64, 24.0, "strict"), lambda notice: None)
        assert refused.value.fps == 9.0
        name = states.open(64, 24.0, "asked", False, False, None, "run")
        note = next(notice.note for notice in states.told[name] if isinstance(notice, Live))
        assert note.startswith("plays 9.6 frames a second instead of 24, which this device keeps")


def test_a_device_that_slows_down_is_followed_within_three_chunks_and_up_again_when_it_recovers() -> None:
    with server() as states:
        states.engine.chunk_s = 0.5
        warmed(states)
        name = states.open(64, 16.0, "auto", False, False, None, "run")
        play(states, 30.0)
        assert rates(states, name) == [16.0]
        states.engine.chunk_s = 1.5
        begun = len(states.told[name])
        play(states, 30.0)
        since = states.told[name][begun:]
        lowered = next(number for number, notice in enumerate(since) if isinstance(notice, Rated))
        assert sum(isinstance(notice, Chunk) for notice in since[:lowered]) < 3
        assert rates(states, name)[-1] <= 12 / 1.5
        assert stalled_s(states, name) < 2.0, "only what was promised before it was known"
        states.engine.chunk_s = 0.5
        play(states, 90.0)
        assert rates(states, name)[-1] == 16.0
        stalled_before = stalled_s(states, name)
        play(states, 60.0)
        assert stalled_s(states, name) == stalled_before


@pytest.mark.parametrize("seed", range(4))
def test_chunk_times_that_vary_do_not_stall_a_stream_at_the_devices_limit(seed: int) -> None:
    with server() as states:
        states.engine.chunk_s = 1.2
        warmed(states)
        name = states.open(64, 16.0, "auto", False, False, None, "run")
        play(states, 120.0, jitter=0.25, seed=seed)  # until the spread is known
        stalled_before = stalled_s(states, name)
        play(states, 600.0, jitter=0.25, seed=seed + 100)
        assert stalled_s(states, name) - stalled_before < 0.6, "continuity of at least 0.999"
        assert rates(states, name)[-1] >= 0.75 * 12 / 1.2


def test_two_share_a_device_and_the_one_who_stays_gets_it_back() -> None:
    with server() as states:
        states.engine.chunk_s = 0.6
        warmed(states)
        first = states.open(64, 16.0, "auto", False, False, None, "run")
        play(states, 10.0)
        second = states.open(64, 16.0, "auto", False, False, None, "run")
        assert rates(states, first)[-1] == rates(states, second)[-1] < 10.0
        play(states, 20.0)
        assert stalled_s(states, first) + stalled_s(states, second) < 0.7, "once, when the second one came"
        states.end(second)
        play(states, 20.0)
        assert rates(states, first)[-1] == 16.0


def test_one_that_comes_back_to_a_full_device_plays_slower_until_there_is_room_and_nobody_else_does() -> None:
    with server() as states:
        states.engine.chunk_s = 0.3
        warmed(states)
        here = [states.open(64, 16.0, "asked", False, False, None, "run") for _ in range(2)]
        with pytest.raises(Overloaded):
            states.service.open(states.request("new", 64, 16.0, "asked"), lambda notice: None)
        back = states.open(64, 16.0, "asked", False, False, None, "run", yields=True)
        live = next(notice for notice in states.told[back] if isinstance(notice, Live))
        assert 4 <= live.fps < 8
        assert "until there is room for its own rate again" in live.note
        play(states, 30.0)
        assert [rates(states, name) for name in here] == [[16.0], [16.0]]
        assert max(stalled_s(states, name) for name in here) <= 0.3, "as long as one chunk, at the most"
        states.end(here[0])
        play(states, 20.0)
        assert rates(states, back)[-1] == 16.0
        assert not states.table.entries[back].asked.yields


def test_one_that_nobody_watches_makes_room_for_somebody_who_waits() -> None:
    with server() as states:
        states.engine.chunk_s = 2.0
        warmed(states)
        left = states.open(64, 16.0, "auto", False, False, None, "pause", idle_s=600.0)
        states.watch(left)
        play(states, 10.0)
        states.unwatch(left)
        waits = states.open(64, 16.0, "auto", True, False, None, "run")
        assert states.table.entries[waits].life.state == "waiting"
        play(states, 8.0)
        assert states.table.entries[left].life.state == "parked"
        assert states.table.entries[waits].life.state == "placed"


def test_one_that_nobody_watches_makes_room_for_somebody_who_plays_slower_than_they_wish() -> None:
    with server() as states:
        states.engine.chunk_s = 0.6
        warmed(states)
        left = states.open(64, 16.0, "auto", False, False, None, "pause", idle_s=600.0)
        states.watch(left)
        play(states, 10.0)
        states.unwatch(left)
        play(states, 10.0)
        assert states.table.entries[left].life.state == "placed", "it is in nobody's way"
        stays = states.open(64, 16.0, "auto", False, False, None, "run")
        assert rates(states, stays)[-1] < 16.0
        play(states, 20.0)
        assert states.table.entries[left].life.state == "parked"
        assert rates(states, stays)[-1] == 16.0


@pytest.mark.parametrize("fps", [0.0, -1.0, 240.0001, 10_000.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused_as_it_was_said(fps: float) -> None:
    with pytest.raises(ConfigError) as refused:
        StreamConfig(height=64, width=64, fps=fps)
    assert str(refused.value) == f"fps must be between 0.1 and 240, got {str(fps).removesuffix('.0')}"
