"""The states of a live session: what the engine says of it, and whether another server has it."""

from __future__ import annotations

import pytest

from millstream.server.sessions.live_state import LEADS_TO, LiveState
from millstream.serving.notices import Ended, Live, Waiting

LIVE = Live(note="", fps=24.0)
WAITING = Waiting(position=1, expected_wait_s=None, reason="full")
ENDED = Ended(cause="stopped", reason="enough")


def test_a_session_follows_what_the_engine_says_of_it() -> None:
    state = LiveState()
    for status, name in ((WAITING, "waiting"), (LIVE, "live"), (WAITING, "waiting"), (ENDED, "ended")):
        state.update(status)
        assert (state.name, state.status) == (name, status)
    state.become("closed")
    assert state.has_ended
    assert LEADS_TO["closed"] == frozenset()


def test_a_session_that_leaves_leaves_whatever_becomes_of_its_place_and_goes_back_to_where_it_is_then() -> (
    None
):
    state = LiveState("live", LIVE)
    state.become("leaving")
    state.update(WAITING)
    assert state.name == "leaving"
    state.stay()
    assert state.name == "waiting"


def test_one_that_has_moved_does_not_come_back_and_ends() -> None:
    state = LiveState("live", LIVE)
    state.become("moved")
    state.update(LIVE)
    state.stay()
    assert state.name == "moved"
    with pytest.raises(AssertionError, match="from moved to leaving"):
        state.become("leaving")
    state.update(ENDED)
    assert state.has_ended
