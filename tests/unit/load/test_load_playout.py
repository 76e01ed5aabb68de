"""The viewer's clock of a load run: what is played, stalled, forgiven and halted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.load.playout import WatchedPlayout
from tests.unit.load_chunks import CHUNK_S, FPS, FRAMES


def test_a_viewer_whose_chunks_come_in_time_never_stalls() -> None:
    clock = WatchedPlayout()
    shown = [clock.arrive(index * CHUNK_S - (0.1 if index else 0), FRAMES, FPS) for index in range(20)]
    assert shown == pytest.approx([index * CHUNK_S for index in range(20)])
    assert clock.continuity(20 * CHUNK_S) == 1.0
    assert clock.misses == 0


def test_a_late_chunk_is_a_stall_as_long_as_it_is_late() -> None:
    clock = WatchedPlayout()
    clock.arrive(10.0, FRAMES, FPS)
    assert clock.arrive(11.0, FRAMES, FPS) == 11.0
    assert clock.stalled_s(11.0) == pytest.approx(0.25)
    assert clock.misses == 1
    assert clock.continuity(11.75) == pytest.approx(1.5 / 1.75)


def test_a_stall_that_goes_on_counts_already() -> None:
    clock = WatchedPlayout()
    clock.arrive(0.0, FRAMES, FPS)
    assert clock.continuity(2 * CHUNK_S) == pytest.approx(0.5)


def test_before_the_first_frame_there_is_no_continuity() -> None:
    assert WatchedPlayout().continuity(5.0) is None


def test_a_chunk_without_pictures_is_a_frozen_picture() -> None:
    clock = WatchedPlayout()
    clock.arrive(0.0, FRAMES, FPS)
    clock.arrive(0.0, FRAMES, FPS, pictures=False)
    assert clock.continuity(2 * CHUNK_S) == pytest.approx(0.5)


def test_a_halt_shifts_everything_and_stalls_nothing() -> None:
    clock = WatchedPlayout()
    clock.arrive(0.0, FRAMES, FPS)
    clock.halt(0.5)
    clock.proceed(100.5)
    assert clock.arrive(100.6, FRAMES, FPS) == pytest.approx(100.75)
    assert clock.stalled_s(101.0) == 0
    assert clock.halted_s == 100


def test_what_is_forgiven_is_no_stall_and_what_exceeds_it_is() -> None:
    clock = WatchedPlayout()
    clock.arrive(0.0, FRAMES, FPS)
    clock.forgive(1.0)
    clock.arrive(CHUNK_S + 1.5, FRAMES, FPS)
    assert clock.forgiven_s == pytest.approx(1.0)
    assert clock.stalled_s(CHUNK_S + 1.5) == pytest.approx(0.5)


Happening = tuple[str, float]
COMMON = ("chunk", "halt", "proceed", "forgive")


def stories(*kinds: str) -> st.SearchStrategy[list[Happening]]:
    return st.lists(st.tuples(st.sampled_from((*COMMON, *kinds)), st.floats(0, 3)), max_size=60)


@given(stories("blank") | stories("skip"), st.floats(0, 5))
def test_every_second_since_the_first_frame_is_played_stalled_forgiven_or_halted(
    story: list[Happening], after_s: float
) -> None:
    clock = WatchedPlayout()
    now = 50.0
    clock.arrive(now, FRAMES, FPS)
    for what, seconds in story:
        now += seconds
        match what:
            case "chunk" | "blank":
                clock.arrive(now, FRAMES, FPS, pictures=what == "chunk")
            case "halt":
                clock.halt(now)
            case "proceed":
                clock.proceed(now)
            case "forgive":
                clock.forgive(seconds)
            case "skip":
                clock.skip(now, to_ahead_s=seconds)
    clock.proceed(now)
    clock.arrive(now, FRAMES, FPS)  # so that no stall is still going on
    now += clock.ahead_s(now)  # media without pictures has been lived through, too
    assert clock.played_s(now) + clock.stalled_s(now) + clock.forgiven_s + clock.halted_s == pytest.approx(
        now - 50.0
    )
    later = now + after_s
    assert clock.continuity(later) is not None
    assert 0 <= (clock.continuity(later) or 0) <= 1
    assert clock.stalled_s(later) <= clock.stalled_s(now) + after_s + 1e-6
